"""New words in a model: they start as the mean of their pieces, and nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from maskwright.errors import InputError
from maskwright.models.albert import ALBERT
from maskwright.models.bert import BERT
from maskwright.models.electra import ELECTRA
from maskwright.models.encoder import PackedEncoder
from maskwright.models.modernbert import ModernBERT
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.objectives.resizing import count_added_parameters, extend_vocabulary, set_rows_to_means
from maskwright.text.tokenizer.domain_tokens import choose_domain_tokens
from maskwright.text.tokenizer.extend import add_domain_tokens
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.text.tokenizer.train import TokenizerType, train_tokenizer
from tolerances import assert_rounded, count_terms

GENERAL = ["the cat sees a genesis of an angel before it rains, and zebras quote the geyser"] * 10
DOMAIN = ["an angiogenesis before zygote and zygote"] * 5
SHAPE: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
NARROW = {**SHAPE, "embedding_size": 8}
FAMILIES: dict[type[PackedEncoder], tuple[str, dict[str, Any]]] = {
    BERT: ("tiny", SHAPE),
    ModernBERT: ("base", SHAPE),
    ALBERT: ("tiny", NARROW),
    ELECTRA: ("small", NARROW),
}


class Tableless(nn.Module):
    hidden_size = 16

    def forward(self, input_ids: Tensor) -> dict[str, Tensor]:
        return {"last_hidden_state": input_ids[..., None].expand(-1, -1, 16).float()}


class Factorised(nn.Module):
    """A foreign encoder whose table is narrower than its answer."""

    hidden_size = 16

    def __init__(self, num_rows: int) -> None:
        super().__init__()
        self.table = nn.Embedding(num_rows, 6)
        self.project = nn.Linear(6, 16)

    def forward(self, input_ids: Tensor) -> dict[str, Tensor]:
        return {"last_hidden_state": self.project(self.table(input_ids))}


def extend(kind: TokenizerType) -> tuple[Tokenizer, Tokenizer]:
    old = train_tokenizer(GENERAL, kind, 320 if kind == "byte_level_bpe" else 70)
    tokens = choose_domain_tokens(DOMAIN, old, min_count=5)
    assert {"angiogenesis", "zygote"} <= {token.word for token in tokens}
    return old, add_domain_tokens(old, tokens)


@pytest.fixture(scope="module")
def wordpieces() -> tuple[Tokenizer, Tokenizer]:
    return extend("wordpiece")


def build(encoder: nn.Module, tokenizer: Tokenizer, vocab_size: int | None = None, **options: Any) -> Any:
    model = MaskedLanguageModel(
        encoder,
        vocab_size or tokenizer.vocab_size,
        mask_token_id=tokenizer.mask_token_id,
        special_token_ids=tokenizer.all_special_ids,
        **options,
    )
    torch.nn.init.normal_(model.mlm_output.bias)
    return model.eval()


def build_family(family: type[PackedEncoder], size: int, tokenizer: Tokenizer, **options: Any) -> Any:
    variant, shape = FAMILIES[family]
    return build(family.from_variant(variant, vocab_size=size, **shape), tokenizer, size, **options)


@torch.no_grad()
def compute_logits(model: MaskedLanguageModel, tokenizer: Tokenizer) -> Tensor:
    return model(input_ids=torch.tensor([tokenizer.encode("the cat sees a zygote before it rains")])).logits


def assert_means(model: Any, old: Tokenizer, new: Tokenizer, before: dict[str, Tensor]) -> None:
    """`before` has the old tables by name; every new word's row is the mean of its pieces' rows in them."""
    tables = {"embedding": find_table(model), "output": model.mlm_output.weight, "bias": model.mlm_output.bias}
    for word in ("angiogenesis", "zygote"):
        (row,) = new.encode_batch([f" {word}"])[0]
        pieces = old.encode_batch([f" {word}"])[0]
        assert row >= old.vocab_size
        assert len(pieces) >= 3
        for name, table in tables.items():
            rows = before[name][pieces]
            assert_rounded(table[row], rows.mean(dim=0), len(pieces), magnitude=float(rows.abs().max()))


def find_table(model: Any) -> Tensor:
    get = getattr(model.encoder, "get_input_embeddings", lambda: model.encoder.table)
    return get().weight


def copy_tables(model: Any) -> dict[str, Tensor]:
    tables = {"embedding": find_table(model), "output": model.mlm_output.weight, "bias": model.mlm_output.bias}
    return {name: table.detach().clone() for name, table in tables.items()}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("is_tied", [True, False])
def test_new_words_are_the_mean_of_their_pieces_and_old_logits_stay(
    wordpieces: tuple[Tokenizer, Tokenizer], family: type[PackedEncoder], is_tied: bool
) -> None:
    torch.manual_seed(0)
    old, new = wordpieces
    model = build_family(family, old.vocab_size, old, tie_word_embeddings=is_tied)
    tables, logits = copy_tables(model), compute_logits(model, old)
    extend_vocabulary(model, old, new)
    assert model.vocab_size == new.vocab_size == model.encoder.config.vocab_size == model.mlm_output.out_features
    assert model.is_tied is is_tied
    assert_means(model, old, new, tables)
    num_terms = count_terms(num_layers=2, width=16, length=logits.shape[1])
    assert_rounded(compute_logits(model, old)[..., : old.vocab_size], logits, num_terms)
    assert torch.equal(find_table(model)[: old.vocab_size], tables["embedding"])


@pytest.mark.parametrize("kind", ["byte_level_bpe", "unigram"])
def test_words_that_carry_their_space_are_found(kind: TokenizerType) -> None:
    old, new = extend(kind)
    model = build_family(BERT, old.vocab_size, old)
    tables = copy_tables(model)
    extend_vocabulary(model, old, new)
    assert_means(model, old, new, tables)


def test_a_narrow_table_of_a_foreign_encoder_is_extended_beside_a_wide_output(
    wordpieces: tuple[Tokenizer, Tokenizer],
) -> None:
    old, new = wordpieces
    model = build(Factorised(old.vocab_size), old)
    tables = copy_tables(model)
    extend_vocabulary(model, old, new)
    assert_means(model, old, new, tables)
    assert find_table(model).shape == (new.vocab_size, 6)
    assert model.mlm_output.weight.shape == (new.vocab_size, 16)


@pytest.mark.parametrize("num_spare", [1, 50])
def test_spare_rows_are_used_first(wordpieces: tuple[Tokenizer, Tokenizer], num_spare: int) -> None:
    old, new = wordpieces
    size = old.vocab_size + num_spare
    model = build_family(ModernBERT, size, old)
    tables = copy_tables(model)
    extend_vocabulary(model, old, new)
    assert model.vocab_size == len(find_table(model)) == max(size, new.vocab_size)
    assert model.is_tied
    assert_means(model, old, new, tables)
    if num_spare == 50:
        assert torch.equal(find_table(model)[new.vocab_size :], tables["embedding"][new.vocab_size :])


def test_an_extended_model_learns_its_words_and_is_saved_with_its_tokenizer(
    wordpieces: tuple[Tokenizer, Tokenizer], tmp_path: Path
) -> None:
    old, new = wordpieces
    model = build_family(BERT, old.vocab_size, old, random_token_ratio=1.0, unchanged_ratio=0.0, mask_ratio=1.0)
    extend_vocabulary(model, old, new)
    masked, _, _ = model._mask_tokens({"input_ids": torch.full((16, 60), 9)})
    assert masked["input_ids"].max() >= old.vocab_size, "random replacements come from the new words too"
    ids = torch.tensor([new.encode("the zygote rains")])
    model.train()
    model(input_ids=ids, labels=ids).loss.backward()
    assert find_table(model).grad[ids[0, 2]].abs().sum() > 0  # type: ignore[index]
    model.save_pretrained(tmp_path, tokenizer=new)
    loaded = MaskedLanguageModel.from_pretrained(tmp_path)
    torch.testing.assert_close(compute_logits(loaded, new), compute_logits(model.eval(), new), rtol=0, atol=0)


def test_tokenizers_that_do_not_belong_together_are_refused_before_anything_changes(
    wordpieces: tuple[Tokenizer, Tokenizer],
) -> None:
    old, new = wordpieces
    model = build_family(BERT, old.vocab_size, old)
    with pytest.raises(InputError, match=r"is token \d+ of the old tokenizer and .+ of the new one"):
        extend_vocabulary(model, old, extend("byte_level_bpe")[1])
    with pytest.raises(InputError, match="give the model's own tokenizer"):
        extend_vocabulary(model, new, new)
    assert model.vocab_size == old.vocab_size


def test_an_encoder_without_a_table_is_refused_here_too(wordpieces: tuple[Tokenizer, Tokenizer]) -> None:
    old, new = wordpieces
    for size in (old.vocab_size, new.vocab_size):
        with pytest.raises(InputError, match="Tableless has no embedding table"):
            extend_vocabulary(build(Tableless(), old, size), old, new)


def test_means_are_computed_in_float_and_kept_in_the_tables_type() -> None:
    table = torch.tensor([[1.0, 3.0], [2.0, 5.0], [0.0, 0.0]], dtype=torch.bfloat16)
    set_rows_to_means(table, {2: [0, 1, 1]})
    assert table.dtype == torch.bfloat16
    assert torch.equal(table[2], torch.tensor([5 / 3, 13 / 3]).bfloat16())


@pytest.mark.parametrize(
    ("config", "cost"),
    [
        ({"vocab_size": 100, "hidden_size": 16}, 10 * 17),
        ({"vocab_size": 100, "hidden_size": 16, "tie_word_embeddings": False}, 10 * 33),
        ({"vocab_size": 100, "hidden_size": 16, "embedding_size": 4}, 10 * 5),
        ({"vocab_size": 100, "dim": 16}, 10 * 17),
        ({"vocab_size": 104, "hidden_size": 16}, 6 * 17),
        ({"vocab_size": 200, "hidden_size": 16}, 0),
        ({"vocab_size": 100}, None),
    ],
)
def test_the_cost_of_new_words_is_what_the_configuration_says(config: dict[str, Any], cost: int | None) -> None:
    assert count_added_parameters(config, num_used=100, num_new=10) == cost


@pytest.mark.parametrize("is_tied", [True, False])
def test_the_cost_is_what_a_model_grows_by(wordpieces: tuple[Tokenizer, Tokenizer], is_tied: bool) -> None:
    old, new = wordpieces
    for family in FAMILIES:
        model = build_family(family, old.vocab_size, old, tie_word_embeddings=is_tied)
        config = model.snapshot().config
        size = sum(parameter.numel() for parameter in model.parameters())
        extend_vocabulary(model, old, new)
        grown = sum(parameter.numel() for parameter in model.parameters()) - size
        assert count_added_parameters(config, old.vocab_size, new.vocab_size - old.vocab_size) == grown
