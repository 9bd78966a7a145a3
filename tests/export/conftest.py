"""Tiny models whose weights are large enough to tell mistakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from maskwright.models.bert import BERT
from maskwright.models.modernbert import ModernBERT
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.text.tokenizer.tokenizer import Tokenizer

Build = Callable[..., MaskedLanguageModel]
SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 48}
EXTRAS = {BERT: {}, ModernBERT: {"local_attention": 8, "global_attn_every_n_layers": 2}}


@pytest.fixture
def build_tiny(tokenizer: Tokenizer) -> Build:
    """A model of 48 positions; options are those of the class, and of the encoder."""

    def build_model(
        encoder_class: type = BERT,
        kind: type[MaskedLanguageModel] = MaskedLanguageModel,
        encoder_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> MaskedLanguageModel:
        torch.manual_seed(0)
        settings = {"vocab_size": tokenizer.vocab_size, **SHAPE, **EXTRAS[encoder_class], **(encoder_options or {})}
        encoder = encoder_class.from_variant("tiny", **settings)
        options = {"vocab_size": tokenizer.vocab_size, "layer_norm_eps": encoder.norm_eps, **options}
        tokens = {"mask_token_id": tokenizer.mask_token_id, "special_token_ids": tokenizer.all_special_ids}
        model = kind(encoder, **tokens, **options)
        with torch.no_grad():
            for param in model.parameters():
                param.add_(torch.randn_like(param) * 0.1)
        return model.eval()

    return build_model
