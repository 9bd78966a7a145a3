"""A start and an end logit for every token, as each family of Hugging Face builds its ...ForQuestionAnswering."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from maskwright.models.encoder import PackedEncoder
from maskwright.models.families import MODERNBERT_FAMILY, family_of
from maskwright.tasks.ner.token_head import TOKEN_ARCHITECTURE, TokenHead, TokenTransform, build_token_head
from maskwright.tasks.sequence.layouts import read_dropout
from maskwright.tasks.task_head import HeadFiles

SPAN_ARCHITECTURE = "ForQuestionAnswering"
_NO_DROPOUT = 0.0
_DROPOUT_SETTINGS = {"distilbert": ("qa_dropout", 0.1)}
"""Their name of the dropout before the logits and its default; the others have none."""


def build_span_head(encoder: PackedEncoder, num_outputs: int, config: Mapping[str, Any]) -> TokenHead:
    """A new head in the way of the encoder's family; `config` is the config.json it came with."""
    family = family_of(encoder)
    for_classes = build_token_head(encoder, num_outputs, config)
    architecture = for_classes.files.architecture.replace(TOKEN_ARCHITECTURE, SPAN_ARCHITECTURE)
    if family is MODERNBERT_FAMILY:
        return TokenHead(for_classes.transform, replace(for_classes.files, architecture=architecture))
    settings: dict[str, float] = {}
    if family.model_type in _DROPOUT_SETTINGS:
        name, default = _DROPOUT_SETTINGS[family.model_type]
        settings[name] = read_dropout(name, default, encoder, config)
    dropout = next(iter(settings.values()), _NO_DROPOUT)
    transform = TokenTransform(encoder.hidden_size, num_outputs, dropout, encoder.config.initializer_range)
    return TokenHead(transform, HeadFiles(architecture, {"transform.output": "qa_outputs"}, settings))
