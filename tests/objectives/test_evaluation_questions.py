"""Models are asked the same questions however they were trained."""

from __future__ import annotations

import pytest
import torch

from maskwright.batch import from_padded
from maskwright.models.bert import BERT
from maskwright.objectives.masked_lm import HybridLanguageModel, MaskedLanguageModel
from maskwright.objectives.replaced_tokens import ReplacedTokenDetection

HEAD = {"mask_token_id": 4, "special_token_ids": range(5)}


def build_encoder():
    return BERT.from_variant("tiny", vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)


@pytest.mark.parametrize(
    "build",
    [
        lambda: MaskedLanguageModel(build_encoder(), 60, **HEAD, mask_ratio=0.5),
        lambda: MaskedLanguageModel(build_encoder(), 60, **HEAD, random_token_ratio=0.0, unchanged_ratio=0.0),
        lambda: MaskedLanguageModel(build_encoder(), 60, **HEAD, selection="bernoulli"),
        lambda: MaskedLanguageModel(build_encoder(), 60, **HEAD, strategy="whole_word"),
        lambda: MaskedLanguageModel(build_encoder(), 60, **HEAD, strategy="span"),
        lambda: HybridLanguageModel(build_encoder(), 60, **HEAD, shifts_masks=False),
        lambda: ReplacedTokenDetection(build_encoder(), 60, **HEAD),
    ],
    ids=["ratio", "all [MASK]", "coin", "words", "spans", "hybrid", "rtd"],
)
def test_evaluation_masks_do_not_depend_on_how_a_model_is_trained(build):
    batch = from_padded(torch.randint(5, 60, (8, 40), generator=torch.Generator().manual_seed(0)))
    plain = MaskedLanguageModel(build_encoder(), 60, **HEAD).corrupt_for_evaluation(batch, 15, 0.15)
    asked = build().corrupt_for_evaluation(batch, 15, 0.15)
    assert torch.equal(asked.batch.input_ids, plain.batch.input_ids)
    assert torch.equal(asked.labels, plain.labels)
