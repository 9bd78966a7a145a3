from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from maskwright.errors import InputError
from maskwright.models.bert import BERT
from maskwright.models.modernbert import ModernBERT
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.objectives.resizing import grow_rows, resize_embedding, resize_vocabulary
from tolerances import assert_rounded, count_terms

OLD, NEW = 40, 43
NUM_TERMS = count_terms(num_layers=2, width=16, length=12)
SHAPE: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": OLD}
FAMILIES = [BERT, ModernBERT]
Family = type[BERT] | type[ModernBERT]


class Foreign(nn.Module):
    hidden_size = 16

    def __init__(self, num_rows: int) -> None:
        super().__init__()
        self.table = nn.Embedding(num_rows, 16)

    def forward(self, input_ids: Tensor) -> dict[str, Tensor]:
        return {"last_hidden_state": self.table(input_ids)}


class Tableless(nn.Module):
    hidden_size = 16

    def forward(self, input_ids: Tensor) -> dict[str, Tensor]:
        return {"last_hidden_state": input_ids[..., None].expand(-1, -1, 16).float()}


def build(encoder: nn.Module, **options: Any) -> MaskedLanguageModel:
    settings = {"vocab_size": OLD, "mask_token_id": 4, "special_token_ids": range(5), **options}
    model = MaskedLanguageModel(encoder, **settings)
    torch.nn.init.normal_(model.mlm_output.bias)
    return model.eval()


@torch.no_grad()
def logits(model: MaskedLanguageModel) -> Tensor:
    ids = torch.arange(24).view(2, 12) % OLD
    return model(input_ids=ids).logits


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("is_tied", [True, False])
def test_logits_of_the_old_tokens_stay_and_ties_are_kept(family: Family, is_tied: bool) -> None:
    torch.manual_seed(0)
    model = build(family.from_variant("tiny" if family is BERT else "base", **SHAPE), tie_word_embeddings=is_tied)
    before = logits(model)
    bias = model.mlm_output.bias.detach().clone()
    resize_vocabulary(model, NEW)
    after = logits(model)
    assert after.shape[-1] == NEW
    assert_rounded(after[..., :OLD], before, NUM_TERMS)
    assert model.is_tied is is_tied
    assert model.vocab_size == model.encoder.vocab_size == model.mlm_output.out_features == NEW
    assert_rounded(model.mlm_output.bias[OLD:], bias.mean().expand(NEW - OLD), OLD, magnitude=1.0)
    model.train()
    labels = torch.full((1, 6), NEW - 1)
    model(input_ids=labels, labels=labels).loss.backward()
    assert model.encoder.get_input_embeddings().weight.grad[NEW - 1].abs().sum() > 0


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("is_tied", [True, False])
def test_a_resized_model_is_saved_and_loaded_equal(tmp_path: Path, family: Family, is_tied: bool) -> None:
    model = build(family.from_variant("tiny" if family is BERT else "base", **SHAPE), tie_word_embeddings=is_tied)
    resize_vocabulary(model, NEW, mask_token_id=OLD, special_token_ids=[0, 1, OLD, OLD + 1])
    model.save_pretrained(tmp_path)
    loaded = MaskedLanguageModel.from_pretrained(tmp_path)
    assert (loaded.vocab_size, loaded.mask_token_id) == (NEW, OLD)
    assert loaded.special_token_ids == (0, 1, OLD, OLD + 1)
    assert loaded.is_tied is is_tied
    torch.testing.assert_close(logits(loaded), logits(model), rtol=0, atol=0)


def test_new_rows_are_the_mean_of_the_old_without_padding() -> None:
    encoder = BERT.from_variant("tiny", **SHAPE)
    old = encoder.get_input_embeddings().weight.detach().clone()
    resize_embedding(encoder, NEW)
    new = encoder.get_input_embeddings().weight
    assert torch.equal(new[:OLD], old)
    assert_rounded(new[OLD:], old[1:].mean(dim=0).expand(3, -1), OLD)
    assert encoder.config.vocab_size == NEW
    assert encoder.get_input_embeddings().num_embeddings == NEW


def test_noise_and_fresh_rows_are_for_those_who_ask() -> None:
    torch.manual_seed(0)
    table = torch.randn(200, 8) + 3
    assert torch.equal(*grow_rows(table, 202)[200:])
    noisy = grow_rows(table, 300, noise=0.1)[200:]
    assert not torch.equal(noisy[0], noisy[1])
    assert noisy.mean().sub(3).abs() < 0.2
    assert grow_rows(table, 300, mean_init=False)[200:].mean().abs() < 0.1
    assert grow_rows(table.bfloat16(), 202).dtype == torch.bfloat16


def test_the_masker_draws_from_the_new_vocabulary_and_spares_its_special_tokens() -> None:
    model = build(BERT.from_variant("tiny", **SHAPE), random_token_ratio=1.0, unchanged_ratio=0.0, mask_ratio=1.0)
    resize_vocabulary(model, OLD + 200, mask_token_id=OLD, special_token_ids=[0, OLD])
    masked, _, selected = model._mask_tokens({"input_ids": torch.full((8, 30), 7)})
    assert isinstance(masked, dict)
    assert selected.all()
    assert masked["input_ids"].max() >= OLD + 100
    assert not torch.isin(masked["input_ids"], torch.tensor([0, OLD])).any()
    assert model.mask_token_id == OLD


def test_a_foreign_encoder_with_spare_rows_keeps_its_table() -> None:
    model = build(Foreign(64))
    before = logits(model)
    resize_vocabulary(model, NEW)
    assert model.encoder.get_submodule("table").weight.shape[0] == 64
    assert_rounded(logits(model)[..., :OLD], before, NUM_TERMS)


def test_the_same_size_changes_nothing_but_the_special_tokens() -> None:
    model = build(Foreign(OLD))
    table = model.mlm_output.weight
    resize_vocabulary(model, OLD, mask_token_id=9)
    assert model.mlm_output.weight is table
    assert model.mask_token_id == 9


def test_shrinking_is_refused() -> None:
    with pytest.raises(InputError, match="the model has 40 tokens, 39 are fewer"):
        resize_vocabulary(build(Foreign(OLD)), OLD - 1)


def test_special_tokens_outside_the_vocabulary_are_refused_before_anything_changes() -> None:
    model = build(Foreign(OLD))
    with pytest.raises(InputError, match="token id 43 is outside the vocabulary of 43"):
        resize_vocabulary(model, NEW, mask_token_id=NEW)
    assert model.vocab_size == model.mlm_output.out_features == OLD


def test_an_encoder_without_a_table_is_refused() -> None:
    with pytest.raises(InputError, match="Tableless has no embedding table to resize"):
        resize_vocabulary(build(Tableless()), NEW)
