"""Heads by the kind of task, for encoders of ours and of your own: `create_nlp_head(NLPTaskConfig(...), input_dim)`.

`TaskModel(encoder, head)` and `maskwright.finetune(..., head=head)` train them. B rows, S row length, C outputs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any, overload

from torch import Tensor, nn

from maskwright.batch import PackedBatch
from maskwright.errors import InputError, check_count
from maskwright.models.any_encoder import find_hidden_size, read_hidden_state
from maskwright.models.encoder import PackedEncoder
from maskwright.models.files.model_folder import OWN_KEY, OWN_TYPE_PREFIX
from maskwright.suggestions import suggest
from maskwright.tasks.heads import (
    SEQUENCE_ARCHITECTURE,
    SPAN_ARCHITECTURE,
    TOKEN_ARCHITECTURE,
    HeadFiles,
    SequenceHead,
    SequenceHeadShape,
    SequenceTransform,
    TaskHead,
    TaskOutput,
    TokenHead,
    TokenTransform,
    build_sequence_head,
    build_span_head,
    build_token_head,
)
from maskwright.tasks.ner.token_classification import TokenClassification
from maskwright.tasks.qa.question_answering import QuestionAnswering
from maskwright.tasks.sequence.classification import Classification
from maskwright.tasks.sequence.multi_label import MultiLabel
from maskwright.tasks.sequence.regression import Regression
from maskwright.tasks.task import Task

SETTINGS_PART = "nlp_head"
_OWN_NAME = "MaskwrightHead"
_INITIALIZER_RANGE = 0.02
_SPAN_OUTPUTS = 2


class NLPTaskType(Enum):
    TEXT_CLASSIFICATION = "text_classification"
    SENTIMENT_ANALYSIS = "sentiment_analysis"
    INTENT_CLASSIFICATION = "intent_classification"
    NATURAL_LANGUAGE_INFERENCE = "natural_language_inference"
    PARAPHRASE_DETECTION = "paraphrase_detection"
    MULTI_LABEL_CLASSIFICATION = "multi_label_classification"
    TEXT_SIMILARITY = "text_similarity"
    NAMED_ENTITY_RECOGNITION = "named_entity_recognition"
    QUESTION_ANSWERING = "question_answering"
    NER = NAMED_ENTITY_RECOGNITION
    QA = QUESTION_ANSWERING


_NUM_OUTPUTS = {NLPTaskType.TEXT_SIMILARITY: 1, NLPTaskType.QA: _SPAN_OUTPUTS}
"""The number of outputs of tasks without classes: one number, or start and end."""
_TASKS = {
    NLPTaskType.MULTI_LABEL_CLASSIFICATION: ("multi-label",),
    NLPTaskType.TEXT_SIMILARITY: ("regression",),
    NLPTaskType.NER: ("ner",),
    NLPTaskType.QA: ("qa",),
}
"""The tasks of `finetune` that a head of a type can do; of those that are not here, classification and pairs."""


@dataclass(frozen=True)
class NLPTaskConfig:
    name: str
    """What the task is called in messages."""
    task_type: NLPTaskType
    num_classes: int | None = None
    """Needed for classes, unless `labels` name them; a measure such as similarity has none, nor have answers."""
    dropout_rate: float = 0.1
    labels: Sequence[str] | None = None
    """The names of the classes; None: their numbers."""

    def __post_init__(self) -> None:
        if not isinstance(self.task_type, NLPTaskType):
            known = [f"NLPTaskType.{one.name}" for one in NLPTaskType]
            raise InputError(
                f"task '{self.name}' has task_type={self.task_type!r}{suggest(str(self.task_type).upper(), known)}"
            )
        if self.num_classes is not None:
            check_count(f"num_classes of task '{self.name}'", self.num_classes, least=0)
        if self.task_type in _NUM_OUTPUTS:
            if self.num_classes not in (None, _NUM_OUTPUTS[self.task_type]) or self.labels is not None:
                what = "a measure has one number" if self.num_outputs == 1 else "an answer has a start and an end"
                raise InputError(f"task '{self.name}' has num_classes={self.num_classes}; {what}: leave it out")
            return
        if self.labels is not None and self.num_classes not in (None, len(self.labels)):
            raise InputError(
                f"task '{self.name}' has num_classes={self.num_classes} and {len(self.labels)} labels; leave one out"
            )
        if self.num_outputs < 2:
            found = f"num_classes={self.num_classes}" if self.labels is None else f"{len(self.labels)} labels"
            raise InputError(f"task '{self.name}' has {found}; it needs at least 2")

    @property
    def num_outputs(self) -> int:
        if self.task_type in _NUM_OUTPUTS:
            return _NUM_OUTPUTS[self.task_type]
        return len(self.labels) if self.labels is not None else self.num_classes or 0

    def build_task(self) -> Task:
        """The task of the head."""
        classes = [str(one) for one in (self.labels if self.labels is not None else range(self.num_outputs))]
        match self.task_type:
            case NLPTaskType.TEXT_SIMILARITY:
                return Regression()
            case NLPTaskType.QUESTION_ANSWERING:
                return QuestionAnswering()
            case NLPTaskType.NAMED_ENTITY_RECOGNITION:
                return TokenClassification(classes)
            case NLPTaskType.MULTI_LABEL_CLASSIFICATION:
                return MultiLabel(classes)
        return Classification(classes)


class NLPHead(TaskHead):
    """A head with its task, which takes the output of any encoder."""

    task_config: NLPTaskConfig
    input_dim: int

    def build_task(self) -> Task:
        return self.task_config.build_task()

    def fit_to(self, encoder: nn.Module) -> None:
        """Save the head in the family's own layout if both compute the same, so that transformers loads the model.

        Any other head is saved under our own type, so that transformers refuses it instead of computing something
        different.
        """
        width = find_hidden_size(encoder)
        if width != self.input_dim:
            raise InputError(
                f"the head of task '{self.task_config.name}' takes states of width {self.input_dim}, the encoder's have"
                f" {width}; create it with input_dim={width}"
            )
        if not isinstance(encoder, PackedEncoder):
            return
        own = self._build_family_head(encoder)
        if self._computes_as(own):
            rate = self.task_config.dropout_rate
            settings = {name: rate if "dropout" in name else value for name, value in own.files.settings.items()}
            self.files = replace(own.files, settings=settings)
        else:
            model_type = f"{OWN_TYPE_PREFIX}{encoder.family.model_type}"
            self.files = replace(self.files, settings={**self.files.settings, "model_type": model_type})

    @abstractmethod
    def _build_family_head(self, encoder: PackedEncoder) -> TaskHead:
        """The head of the encoder's family for the task."""

    @abstractmethod
    def _computes_as(self, own: TaskHead) -> bool:
        """Whether the family's head computes the same from the same weights, dropout aside."""

    @overload
    def forward(self, encoder_outputs: Tensor, batch: PackedBatch, num_documents: int) -> Tensor: ...
    @overload
    def forward(self, encoder_outputs: Mapping[str, Tensor] | object) -> TaskOutput: ...
    def forward(
        self, encoder_outputs: Any, batch: PackedBatch | None = None, num_documents: int = 1
    ) -> Tensor | TaskOutput:
        """Logits (B, C), or (B, S, C) for tokens, of what an encoder returned; `TaskModel` gives states and a batch."""
        if batch is not None:
            return super().forward(encoder_outputs, batch, num_documents)  # type: ignore[safe-super]
        return TaskOutput(logits=self._answer(read_hidden_state(encoder_outputs, self)))

    @abstractmethod
    def _answer(self, hidden: Tensor) -> Tensor:
        """Logits of padded states (B, S, D)."""


class NLPSequenceHead(NLPHead, SequenceHead):
    """BERT's head on the first token's state of each text: dense, tanh, dropout, logits."""

    def __init__(self, task_config: NLPTaskConfig, input_dim: int) -> None:
        shape = SequenceHeadShape(dropout=task_config.dropout_rate)
        files = _describe_files(task_config, SEQUENCE_ARCHITECTURE, ("dense", "output"))
        super().__init__(SequenceTransform(input_dim, task_config.num_outputs, shape), files)
        self.task_config = task_config
        self.input_dim = input_dim

    def _build_family_head(self, encoder: PackedEncoder) -> TaskHead:
        return build_sequence_head(encoder, self.task_config.num_outputs, {})

    def _computes_as(self, own: TaskHead) -> bool:
        assert isinstance(own, SequenceHead)
        assert isinstance(own.transform, SequenceTransform)
        shape = own.transform.shape
        return (shape.activation, shape.pooling, shape.norm_eps, shape.has_dense_bias) == ("tanh", "cls", None, True)

    def _answer(self, hidden: Tensor) -> Tensor:
        return self.transform(hidden[:, 0])


class NLPTokenHead(NLPHead, TokenHead):
    """BERT's head on every token's state, for entities and answers: dropout, logits."""

    def __init__(self, task_config: NLPTaskConfig, input_dim: int) -> None:
        transform = TokenTransform(input_dim, task_config.num_outputs, task_config.dropout_rate, _INITIALIZER_RANGE)
        is_span = task_config.task_type is NLPTaskType.QA
        files = _describe_files(task_config, SPAN_ARCHITECTURE if is_span else TOKEN_ARCHITECTURE, ("output",))
        super().__init__(transform, files)
        self.task_config = task_config
        self.input_dim = input_dim

    def _build_family_head(self, encoder: PackedEncoder) -> TaskHead:
        build = build_span_head if self.task_config.task_type is NLPTaskType.QA else build_token_head
        return build(encoder, self.task_config.num_outputs, {})

    def _computes_as(self, own: TaskHead) -> bool:
        return isinstance(own, TokenHead) and isinstance(own.transform, TokenTransform)

    def _answer(self, hidden: Tensor) -> Tensor:
        return self.transform(hidden)


def _describe_files(config: NLPTaskConfig, architecture: str, layers: Sequence[str]) -> HeadFiles:
    settings = {**asdict(config), "task_type": config.task_type.value}
    modules = {f"transform.{name}": f"{SETTINGS_PART}.{name}" for name in layers}
    return HeadFiles(f"{_OWN_NAME}{architecture}", modules, {OWN_KEY: {SETTINGS_PART: settings}})


def create_nlp_head(task_config: NLPTaskConfig, input_dim: int) -> NLPHead:
    """A head for hidden states of width `input_dim`."""
    if not isinstance(task_config, NLPTaskConfig):
        raise InputError(
            f"task_config is a {type(task_config).__name__}; expected NLPTaskConfig(name, task_type, num_classes)"
        )
    if not isinstance(input_dim, int) or input_dim < 1:
        raise InputError(f"input_dim is {input_dim!r}; it must be the width of the encoder's hidden states")
    is_per_token = task_config.task_type in (NLPTaskType.NER, NLPTaskType.QA)
    return NLPTokenHead(task_config, input_dim) if is_per_token else NLPSequenceHead(task_config, input_dim)


def load_nlp_head(settings: Mapping[str, Any], input_dim: int) -> NLPHead:
    """The head that a config.json describes, its weights yet to be filled in."""
    name = str(settings.get("task_type"))
    types = {one.value: one for one in NLPTaskType}
    if name not in types:
        raise InputError(f"the head's task_type is '{name}'{suggest(name, types)}")
    values = {key: settings.get(key) for key in ("num_classes", "labels")}
    rate = float(settings.get("dropout_rate", 0.0))
    return create_nlp_head(
        NLPTaskConfig(str(settings.get("name")), types[name], dropout_rate=rate, **values), input_dim
    )


def check_head(task_head: NLPHead, task_name: str, task: Task) -> None:
    """Refuse a head for a task of `finetune` that it cannot do, or for other classes than the examples have."""
    config = task_head.task_config
    known = _TASKS.get(config.task_type, ("classification", "pairs"))
    if task_name not in known:
        raise InputError(
            f"the head of task '{config.name}' is for {config.task_type.value}, which is {' or '.join(known)}, not"
            f" {task_name}; create one for that"
        )
    if config.num_outputs != task.num_outputs:
        raise InputError(
            f"the head of task '{config.name}' has {config.num_outputs} classes, the examples have"
            f" {task.num_outputs}; create it with num_classes={task.num_outputs}"
        )
    classes = getattr(task, "classes", None)
    if config.labels is not None and classes is not None and tuple(config.labels) != tuple(classes):
        raise InputError(
            f"the head of task '{config.name}' has the labels {', '.join(config.labels)}, the examples"
            f" {', '.join(classes)}; give them in this order, or leave labels out"
        )
