"""Heads for encoders of your own, by the kind of task: `create_nlp_head(NLPTaskConfig(...), input_dim)`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from torch import Tensor, nn

from maskwright.errors import InputError, check_count
from maskwright.models.encoding import read_hidden_state
from maskwright.suggestions import suggest
from maskwright.tasks.model import TaskOutput
from maskwright.tasks.task_head import SequenceHeadShape, SequenceTransform


class NLPTaskType(Enum):
    TEXT_CLASSIFICATION = "text_classification"
    SENTIMENT_ANALYSIS = "sentiment_analysis"
    INTENT_CLASSIFICATION = "intent_classification"
    NATURAL_LANGUAGE_INFERENCE = "natural_language_inference"
    PARAPHRASE_DETECTION = "paraphrase_detection"
    MULTI_LABEL_CLASSIFICATION = "multi_label_classification"
    TEXT_SIMILARITY = "text_similarity"


_MEASURES = frozenset((NLPTaskType.TEXT_SIMILARITY,))
"""Tasks whose answer is one number."""


@dataclass(frozen=True)
class NLPTaskConfig:
    name: str
    """What the task is called in messages."""
    task_type: NLPTaskType
    num_classes: int | None = None
    """Needed for classes; a measure such as similarity has none."""
    dropout_rate: float = 0.1

    def __post_init__(self) -> None:
        if not isinstance(self.task_type, NLPTaskType):
            known = [f"NLPTaskType.{one.name}" for one in NLPTaskType]
            raise InputError(
                f"task '{self.name}' has task_type={self.task_type!r}{suggest(str(self.task_type).upper(), known)}"
            )
        if self.num_classes is not None:
            check_count(f"num_classes of task '{self.name}'", self.num_classes, least=0)
        is_measure = self.task_type in _MEASURES
        if is_measure and self.num_classes not in (None, 1):
            raise InputError(
                f"task '{self.name}' has num_classes={self.num_classes}; a measure has one number: leave it out"
            )
        if not is_measure and (self.num_classes is None or self.num_classes < 2):
            raise InputError(f"task '{self.name}' has num_classes={self.num_classes}; it needs at least 2")

    @property
    def num_outputs(self) -> int:
        return self.num_classes or 1


class NLPHead(nn.Module):
    """BERT's head on the first token's state of each text: dense, tanh, dropout, logits."""

    def __init__(self, task_config: NLPTaskConfig, input_dim: int) -> None:
        super().__init__()
        self.task_config = task_config
        shape = SequenceHeadShape(dropout=task_config.dropout_rate)
        self.transform = SequenceTransform(input_dim, task_config.num_outputs, shape)

    def forward(self, encoder_outputs: Mapping[str, Tensor] | object) -> TaskOutput:
        """Logits (batch, outputs) of what an encoder returned."""
        hidden = read_hidden_state(encoder_outputs, self)
        return TaskOutput(logits=self.transform(hidden[:, 0]))


def create_nlp_head(task_config: NLPTaskConfig, input_dim: int) -> NLPHead:
    """A head for hidden states of width `input_dim`."""
    if not isinstance(task_config, NLPTaskConfig):
        raise InputError(
            f"task_config is a {type(task_config).__name__}; expected NLPTaskConfig(name, task_type, num_classes)"
        )
    if not isinstance(input_dim, int) or input_dim < 1:
        raise InputError(f"input_dim is {input_dim!r}; it must be the width of the encoder's hidden states")
    return NLPHead(task_config, input_dim)
