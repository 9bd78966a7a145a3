"""Activations that are computed twice give the gradients of those that are kept, with dropout too."""

from __future__ import annotations

import pytest
import torch
import transformers
from kept_gradients import compute_gradients

from maskwright.errors import InputError
from maskwright.models.any_encoder import recompute_activations
from maskwright.models.bert import BERT
from maskwright.models.modernbert import ModernBERT
from maskwright.objectives.masked_lm import MaskedLanguageModel

_SHAPE = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


def build_encoder(family):
    if family == "bert":
        rates = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.3}
        return BERT.from_variant("tiny", max_position_embeddings=16, **_SHAPE, **rates)
    if family == "modernbert":
        rates = {"embedding_dropout": 0.3, "mlp_dropout": 0.3, "attention_dropout": 0.3}
        return ModernBERT.from_variant("tiny", max_position_embeddings=16, **_SHAPE, **rates)
    config = transformers.BertConfig(**_SHAPE, intermediate_size=32, max_position_embeddings=16)
    return transformers.BertModel(config, add_pooling_layer=False)


@pytest.mark.parametrize("family", ["bert", "modernbert", "transformers"])
def test_gradients_are_bit_equal(build_loader, family):
    torch.manual_seed(0)
    model = MaskedLanguageModel(build_encoder(family), 60, mask_token_id=4, special_token_ids=range(5)).train()
    batch = next(build_loader().epoch(0))
    _, kept = compute_gradients(model, batch)
    recompute_activations(model.encoder, True)
    passes = []
    first_projection = next(module for module in model.encoder.modules() if isinstance(module, torch.nn.Linear))
    first_projection.register_forward_hook(lambda *_: passes.append(1))
    _, recomputed = compute_gradients(model, batch)
    assert len(passes) == 2, "forward, and again for the backward pass"
    assert all(torch.equal(recomputed[name], gradient) for name, gradient in kept.items())


def test_an_encoder_that_cannot_is_refused():
    class Foreign(torch.nn.Module):
        hidden_size = 16

    with pytest.raises(InputError, match=r"activation_checkpointing is on, but Foreign has no .*; leave it off"):
        recompute_activations(Foreign(), True)
