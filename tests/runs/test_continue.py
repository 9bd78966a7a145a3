"""Continuing from a model: the tokenizer must be its own, and added tokens get places."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

import maskwright as mw
from maskwright.config import build_config
from maskwright.errors import InputError
from maskwright.runs.model import build_model, check_vocabulary
from maskwright.text.tokenizer.tokenizer import Tokenizer, load_tokenizer
from tolerances import assert_rounded, count_terms


def save_model(folder: Path, vocab_size: int, mask_token_id: int, special_token_ids: tuple[int, ...]) -> Any:
    torch.manual_seed(0)
    encoder = mw.BERT.from_variant(
        "tiny",
        vocab_size=vocab_size,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=32,
    )
    model = mw.MaskedLanguageModel(
        encoder, vocab_size, mask_token_id=mask_token_id, special_token_ids=special_token_ids
    ).eval()
    model.save_pretrained(folder)
    return model


def save_gpt2_like_tokenizer(folder: Path) -> Tokenizer:
    """Words and an end-of-text token, and no mask token."""
    words = ["<|endoftext|>", "the", "cat", "sat", "on", "mat"]
    backend = Backend(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<|endoftext|>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(["<|endoftext|>"])
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    return load_tokenizer(folder)


def test_a_mask_token_that_was_added_gets_a_place_in_the_model(tmp_path: Path) -> None:
    tokenizer = save_gpt2_like_tokenizer(tmp_path / "model")
    assert "mask" in tokenizer.added_roles
    old = save_model(tmp_path / "model", vocab_size=6, mask_token_id=5, special_token_ids=(0,))
    config = build_config({"model": {"from": str(tmp_path / "model")}, "data": {"max_length": 32}})
    model = build_model(config, tokenizer).eval()
    assert model.vocab_size == tokenizer.vocab_size > 6
    assert model.mask_token_id == tokenizer.mask_token_id
    ids = torch.tensor([[0, 1, 2, 3]])
    assert_rounded(model(ids).logits[..., :6], old(ids).logits, count_terms(num_layers=2, width=32, length=4))


def test_a_tokenizer_of_another_size_mask_or_special_tokens_is_refused_with_the_numbers(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    size, specials = tokenizer.vocab_size, tuple(tokenizer.all_special_ids)
    fitting = save_model(tmp_path / "fitting", size, tokenizer.mask_token_id, specials)
    check_vocabulary(fitting, tokenizer)
    larger = save_model(tmp_path / "larger", size + 500, tokenizer.mask_token_id, specials)
    with pytest.raises(InputError, match=f"has {size} tokens, the model {size + 500}"):
        check_vocabulary(larger, tokenizer)
    smaller = save_model(tmp_path / "smaller", size - 1, tokenizer.mask_token_id, specials)
    with pytest.raises(InputError, match=f"has {size} tokens, the model {size - 1}"):
        check_vocabulary(smaller, tokenizer)
    other_mask = save_model(tmp_path / "mask", size, 20, specials)
    with pytest.raises(InputError, match=f"mask token is {tokenizer.mask_token_id}, the model's 20"):
        check_vocabulary(other_mask, tokenizer)
    other_special = save_model(tmp_path / "special", size, tokenizer.mask_token_id, (*specials, 30))
    with pytest.raises(InputError, match=r"special tokens \[30\] are ordinary ones"):
        check_vocabulary(other_special, tokenizer)


def test_a_tokenizer_with_the_same_numbers_and_other_words_is_refused(tmp_path: Path, sentences: list[str]) -> None:
    own = mw.train_tokenizer(sentences, "word_level", min_frequency=1)
    other = mw.train_tokenizer([text[::-1] for text in sentences], "word_level", min_frequency=1)
    size = min(own.vocab_size, other.vocab_size)
    assert abs(own.vocab_size - other.vocab_size) < 100
    save_model(tmp_path / "model", max(own.vocab_size, other.vocab_size), 4, tuple(range(5)))
    own.save(tmp_path / "model")
    config = build_config({"model": {"from": str(tmp_path / "model")}, "data": {"max_length": 32}})
    assert build_model(config, own).vocab_size >= size
    with pytest.raises(InputError, match="others differ too; use the model's tokenizer"):
        build_model(config, other)
