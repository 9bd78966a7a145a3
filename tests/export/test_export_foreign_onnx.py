"""Encoders of others as ONNX: those that can be traced are, the rest is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from maskwright.errors import InputError
from maskwright.export.onnx import export_onnx
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.text.tokenizer.tokenizer import Tokenizer
from tolerances import count_terms, rounding

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


class ForeignEncoder(nn.Module):
    hidden_size = 16

    def __init__(self, vocab_size: int, looks_into_the_batch: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, 16)
        self.mix = nn.Linear(16, 16)
        self.looks_into_the_batch = looks_into_the_batch

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        hidden = self.embedding(input_ids)
        if self.looks_into_the_batch and input_ids.sum() > 3:
            hidden = hidden * 2
        weights = attention_mask[..., None].to(hidden.dtype)
        mean = (hidden * weights).sum(dim=1, keepdim=True) / weights.sum(dim=1, keepdim=True).clamp(min=1)
        return {"last_hidden_state": self.mix(hidden + mean)}


def build_foreign(tokenizer: Tokenizer, looks_into_the_batch: bool) -> MaskedLanguageModel:
    torch.manual_seed(0)
    encoder = ForeignEncoder(tokenizer.vocab_size, looks_into_the_batch)
    return MaskedLanguageModel(encoder, tokenizer.vocab_size, mask_token_id=tokenizer.mask_token_id).eval()


@pytest.mark.slow  # tracing takes seconds; the refusal below goes the same way
def test_an_encoder_of_others_is_exported(tokenizer, sentences, tmp_path):
    model = build_foreign(tokenizer, looks_into_the_batch=False)
    figures = export_onnx(model, tokenizer, tmp_path / "out", int8=False, texts=sentences, say=lambda line: None)
    largest_logit = 16.0  # a normed state of 16 numbers and a row of a table of deviation 1 are each 4 long
    assert figures["largest_difference"] <= rounding(count_terms(num_layers=1, width=16, length=64), largest_logit)


def test_an_encoder_that_cannot_be_traced_is_refused_in_one_sentence(tokenizer, sentences, tmp_path, capfd):
    model = build_foreign(tokenizer, looks_into_the_batch=True)
    with pytest.raises(InputError, match=r"cannot trace ForeignEncoder \(Could not guard") as caught:
        export_onnx(model, tokenizer, tmp_path / "out", int8=False, texts=sentences, say=lambda line: None)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")
