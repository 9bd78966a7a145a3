"""Logits of every token, in the way of each family's ...ForTokenClassification in transformers.

B rows, S row length, D width, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from maskwright.batch import PackedBatch
from maskwright.models.encoder import PackedEncoder
from maskwright.models.family import TaskHeadLayout
from maskwright.models.init import init_weights
from maskwright.models.layers import Dropout
from maskwright.tasks.sequence.sequence_head import build_dense_transform, read_dropout
from maskwright.tasks.task_head import Answered, HeadFiles, SequenceTransform, TaskHead

TOKEN_ARCHITECTURE = "ForTokenClassification"  # noqa: S105 (a name of transformers, no password)


class TokenTransform(nn.Module):
    """Dropout and the logits: the head of most families."""

    def __init__(self, width: int, num_outputs: int, dropout: float, initializer_range: float) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.output = nn.Linear(width, num_outputs)
        init_weights(self, initializer_range)

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., C) of (..., D)"""
        return self.output(self.dropout(hidden))


class TokenHead(TaskHead):
    """Logits (B, S, C) of tokens; those between words' first tokens are nobody's answer."""

    is_per_token = True

    def __init__(self, transform: TokenTransform | SequenceTransform | Answered, files: HeadFiles) -> None:
        super().__init__()
        self.transform = transform
        self.files = files

    @property
    def output(self) -> nn.Linear:
        return self.transform.output

    def forward(self, hidden: Tensor, batch: PackedBatch, num_documents: int) -> Tensor:
        return self.transform(hidden)


def build_token_head(encoder: PackedEncoder, num_outputs: int, config: Mapping[str, Any]) -> TokenHead:
    """A new head in the way of the encoder's family; `config` is the config.json it came with."""
    return build_per_token(encoder, num_outputs, encoder.family.token_head, config)


def build_per_token(
    encoder: PackedEncoder, num_outputs: int, layout: TaskHeadLayout, config: Mapping[str, Any]
) -> TokenHead:
    """A head for every token as a layout has it."""
    if layout.dense is not None:
        return TokenHead(*build_dense_transform(encoder, num_outputs, layout, config))
    dropout = read_dropout(layout, encoder, config)
    settings: dict[str, Any] = {} if layout.dropout_setting is None else {layout.dropout_setting: dropout}
    plain = TokenTransform(encoder.hidden_size, num_outputs, dropout, encoder.config.initializer_range)
    return TokenHead(plain, HeadFiles(layout.architecture, {"transform.output": layout.output}, settings))
