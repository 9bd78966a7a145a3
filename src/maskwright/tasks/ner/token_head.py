"""Logits of every token, in the way of each family's ...ForTokenClassification in transformers.

B rows, S row length, D width, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from maskwright.batch import PackedBatch
from maskwright.models.encoder import PackedEncoder
from maskwright.models.families import MODERNBERT_FAMILY, family_of
from maskwright.models.init import init_weights
from maskwright.models.layers import Dropout
from maskwright.tasks.sequence.layouts import build_modernbert_shape, describe_modernbert_shape, read_dropout
from maskwright.tasks.task_head import Answered, HeadFiles, SequenceTransform, TaskHead

TOKEN_ARCHITECTURE = "ForTokenClassification"  # noqa: S105 (a name of transformers, no password)


@dataclass(frozen=True)
class TokenLayout:
    family_name: str
    """As it stands in the name of the architecture."""
    dropout_setting: str | None = "classifier_dropout"
    """Their name of the head's dropout; None: it is that of the hidden states."""
    default_dropout: float | None = None
    """Where the setting is not there; None: that of the hidden states."""


_LAYOUTS = {
    "bert": TokenLayout("Bert"),
    "roberta": TokenLayout("Roberta"),
    "xlm-roberta": TokenLayout("XLMRoberta"),
    "electra": TokenLayout("Electra"),
    "mpnet": TokenLayout("MPNet", dropout_setting=None),
    "distilbert": TokenLayout("DistilBert", dropout_setting=None),
    "albert": TokenLayout("Albert", "classifier_dropout_prob", 0.1),
    "modernbert": TokenLayout("ModernBert", default_dropout=0.0),
}
_OUTPUT = {"transform.output": "classifier"}


class TokenTransform(nn.Module):
    """Dropout and the logits: the head of all families but ModernBERT."""

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
    family = family_of(encoder)
    layout = _LAYOUTS[family.model_type]
    dropout = read_dropout(layout.dropout_setting, layout.default_dropout, encoder, config)
    settings: dict[str, Any] = {} if layout.dropout_setting is None else {layout.dropout_setting: dropout}
    architecture = f"{layout.family_name}{TOKEN_ARCHITECTURE}"
    width, initializer_range = encoder.hidden_size, encoder.config.initializer_range
    if family is not MODERNBERT_FAMILY:
        plain = TokenTransform(width, num_outputs, dropout, initializer_range)
        return TokenHead(plain, HeadFiles(architecture, _OUTPUT, settings))
    shape = build_modernbert_shape(encoder, config, dropout)
    modules = {**_OUTPUT, "transform.dense": "head.dense", "transform.norm": "head.norm"}
    files = HeadFiles(architecture, modules, {**settings, **describe_modernbert_shape(shape)})
    return TokenHead(SequenceTransform(width, num_outputs, shape, initializer_range), files)
