"""A start and an end logit for every token, as each family of Hugging Face builds its ...ForQuestionAnswering."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from maskwright.models.encoder import PackedEncoder
from maskwright.tasks.ner.token_head import TokenHead, build_per_token

SPAN_ARCHITECTURE = "ForQuestionAnswering"


def build_span_head(encoder: PackedEncoder, num_outputs: int, config: Mapping[str, Any]) -> TokenHead:
    """A new head in the way of the encoder's family; `config` is the config.json it came with."""
    return build_per_token(encoder, num_outputs, encoder.family.span_head, config)
