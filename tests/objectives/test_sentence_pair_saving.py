"""The files of a `SentencePairModel`: read back whole, by us and by transformers, for any encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM, BertForMaskedLM, BertForPreTraining

from maskwright.batch import from_padded
from maskwright.errors import InputError
from maskwright.models.bert import BERT
from maskwright.models.modernbert import ModernBERT
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.objectives.sentence_pairs import SentencePairModel
from tolerances import assert_rounded, count_terms

V, MASK = 60, 4
SHAPE = {"vocab_size": V, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


class OwnEncoder(nn.Module):
    hidden_size = 16

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(V, 16)
        self.mix = nn.Linear(16, 16)

    def forward(self, input_ids: Tensor) -> dict[str, Tensor]:
        embedded = self.embedding(input_ids)
        return {"last_hidden_state": embedded + self.mix(embedded).mean(dim=1, keepdim=True)}


def build_bert() -> BERT:
    return BERT.from_variant("tiny", **SHAPE)


def build_modernbert() -> ModernBERT:
    return ModernBERT.from_variant("tiny", **SHAPE)


def build_model(encoder: nn.Module | None = None, **settings: Any) -> SentencePairModel:
    return SentencePairModel(encoder or build_bert(), V, mask_token_id=MASK, special_token_ids=range(5), **settings)


def make_inputs() -> dict[str, Tensor]:
    """Two padded pairs."""
    input_ids = torch.tensor([[2, 10, 11, 3, 12, 3, 0], [2, 20, 3, 21, 22, 23, 3]])
    types = torch.tensor([[0, 0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 1, 1]])
    return {"input_ids": input_ids, "attention_mask": (input_ids != 0).long(), "token_type_ids": types}


def pair_logits(model: SentencePairModel) -> Tensor:
    return model.eval().predict_pairs(from_padded(**make_inputs()))


@pytest.mark.parametrize("build_encoder", [build_bert, build_modernbert, OwnEncoder])
def test_saved_models_come_back_whole(tmp_path: Path, build_encoder) -> None:
    model = build_model(build_encoder(), pair_weight=0.5, mask_ratio=0.3)
    model.save_pretrained(tmp_path)
    needed = build_encoder() if build_encoder is OwnEncoder else None
    loaded = SentencePairModel.from_pretrained(tmp_path, encoder=needed)
    assert (loaded.pair_weight, loaded.mask_ratio) == (0.5, 0.3)
    filled = build_model(build_encoder())
    filled.load_weights(tmp_path)
    for other in (loaded, filled):
        assert other.state_dict().keys() == model.state_dict().keys()
        assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in model.state_dict().items())
        assert torch.equal(pair_logits(other), pair_logits(model))
    masked_lm = MaskedLanguageModel.from_pretrained(tmp_path, encoder=needed)
    assert torch.equal(masked_lm.mlm_dense.weight, model.mlm_dense.weight)


def test_transformers_reads_a_saved_bert(tmp_path: Path) -> None:
    model = build_model().eval()
    model.save_pretrained(tmp_path)
    inputs = make_inputs()
    with torch.no_grad():
        theirs, loading = BertForPreTraining.from_pretrained(tmp_path, output_loading_info=True)
        output = theirs.eval()(**inputs)
        expected = model(**inputs).logits
        num_terms = count_terms(num_layers=1, width=16, length=7)
        assert_rounded(output.seq_relationship_logits, model.predict_pairs(from_padded(**inputs)), num_terms)
        is_real = inputs["attention_mask"].bool()
        assert_rounded(output.prediction_logits[is_real], expected[is_real], num_terms)
        masked_lm = BertForMaskedLM.from_pretrained(tmp_path).eval()
        assert_rounded(masked_lm(**inputs).logits, output.prediction_logits, num_terms)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    assert theirs.config.architectures == ["BertForPreTraining"]
    assert isinstance(AutoModelForMaskedLM.from_pretrained(tmp_path), BertForMaskedLM)


@pytest.mark.parametrize("build_encoder", [build_bert, build_modernbert])
def test_model_without_a_pair_head_is_named_and_can_be_given_one(tmp_path: Path, build_encoder) -> None:
    masked_lm = MaskedLanguageModel(build_encoder(), V, mask_token_id=MASK, strategy="span", mask_ratio=0.2)
    masked_lm.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"without a pair head; .* SentencePairModel\.around"):
        SentencePairModel.from_pretrained(tmp_path)
    paired = SentencePairModel.around(masked_lm.eval(), pair_weight=2.0)
    ids = torch.randint(5, V, (2, 9))
    assert torch.equal(paired(ids).logits, masked_lm(ids).logits)
    assert (paired.pair_weight, paired.mask_ratio, paired.masker.settings()) == (2.0, 0.2, masked_lm.masker.settings())
    assert paired.is_tied


def test_damaged_pair_head_is_named(tmp_path: Path) -> None:
    build_model(build_modernbert()).save_pretrained(tmp_path)
    (tmp_path / "pair_head.safetensors").write_bytes(b"no tensors")
    with pytest.raises(InputError, match=r"pair_head\.safetensors is damaged"):
        SentencePairModel.from_pretrained(tmp_path)


def test_saving_leaves_the_model_as_it_is(tmp_path: Path) -> None:
    model = build_model()
    names = set(model.state_dict())
    model.save_pretrained(tmp_path)
    assert set(model.state_dict()) == names
