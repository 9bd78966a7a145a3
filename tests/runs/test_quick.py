from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from maskwright.errors import InputError
from maskwright.models.bert import BERT
from maskwright.runs.quick import create_mlm_dataset, create_mlm_training_model
from maskwright.text.tokenizer import Tokenizer


def test_a_packed_dataset_holds_every_sentence(corpus_file: Path, tokenizer: Tokenizer, sentences: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset = create_mlm_dataset(corpus_file, tokenizer, batch_size=4, max_length=32)
    batches = list(dataset)
    assert len(dataset.samples) == len(sentences)
    assert all(batch.input_ids.shape == (4, 32) for batch in batches[:-1])
    assert sum(int((batch.input_ids == tokenizer.cls_token_id).sum()) for batch in batches) == len(sentences)


def test_a_padded_dataset_has_one_sentence_per_row(
    corpus_file: Path, tokenizer: Tokenizer, sentences: list[str]
) -> None:
    dataset = create_mlm_dataset(corpus_file, tokenizer, batch_size=7, max_length=32, packed=False)
    rows = []
    for batch in dataset:
        assert set(batch) == {"input_ids", "attention_mask", "token_type_ids"}
        for ids, attention_mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
            assert ids.shape == (32,)
            assert torch.equal(attention_mask.bool(), ids != tokenizer.pad_token_id)
            rows.append(ids[attention_mask.bool()].tolist())
    assert rows != [tokenizer.encode(sentence) for sentence in sentences]
    assert sorted(rows) == sorted(tokenizer.encode(sentence) for sentence in sentences)


def test_damaged_text_is_warned_about(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"the cat sees a long road.\nthe caf\xe9 is here.\n")
    with pytest.warns(UserWarning, match="1 lines are not valid UTF-8"):
        create_mlm_dataset(path, tokenizer)


def test_a_missing_file_is_named(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(InputError, match=r"no file at .*absent\.txt"):
        create_mlm_dataset(tmp_path / "absent.txt", tokenizer)


def test_the_training_model_learns_from_the_dataset(corpus_file: Path, tokenizer: Tokenizer) -> None:
    encoder = BERT.from_variant("tiny", vocab_size=tokenizer.vocab_size, hidden_size=32, num_attention_heads=2)
    trainer = create_mlm_training_model(
        encoder, tokenizer.vocab_size, tokenizer.mask_token_id, tokenizer.all_special_ids, learning_rate=3e-3
    )
    assert trainer.model.encoder is encoder
    history = trainer.fit(create_mlm_dataset(corpus_file, tokenizer, batch_size=8, max_length=32), epochs=5)
    losses = history.history["loss"]
    assert len(losses) == 5
    assert losses[-1] < losses[0]
