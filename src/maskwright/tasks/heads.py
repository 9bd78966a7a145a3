"""Task heads: hidden states of packed rows to logits of texts, tokens or spans, or to vectors of texts.

The heads for texts, tokens and spans are those of each family's ...ForSequenceClassification, ...ForTokenClassification
and ...ForQuestionAnswering in transformers; vectors are pooled as sentence-transformers does.
B rows, S row length, N documents of a row, D width, C outputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskwright.batch import FlatBatch, PackedBatch
from maskwright.errors import InputError
from maskwright.models.any_encoder import name_encoder
from maskwright.models.documents import takes_documents_alone
from maskwright.models.encoder import PackedEncoder
from maskwright.models.family import TaskHeadLayout
from maskwright.models.files.model_folder import CONFIG_FILE, WEIGHTS_FILE, read_own_settings
from maskwright.models.files.sentence_modules import describe_pooling
from maskwright.models.layers import ACTIVATIONS, Dropout, build_activation, init_weights
from maskwright.models.products import RowLinear
from maskwright.models.transformers_encoder import TunedEncoder
from maskwright.suggestions import suggest
from maskwright.tasks.task import Task

Pooling = Literal["cls", "mean"]


def pool(hidden: Tensor, batch: PackedBatch, num_documents: int, pooling: Pooling) -> Tensor:
    """(B, N, D): the state of each document's first token, or the mean of its tokens; meaningless if a row has fewer
    documents.
    """
    return _pool_first(hidden, batch, num_documents) if pooling == "cls" else _pool_mean(hidden, batch, num_documents)


def _pool_first(hidden: Tensor, batch: PackedBatch, num_documents: int) -> Tensor:
    is_first = (batch.positions == 0) & ~batch.is_padding
    slots = torch.where(is_first, batch.document_ids, 0)  # slot 0 takes all other tokens and is not read
    tokens = torch.arange(hidden.shape[1], device=hidden.device).expand_as(slots)
    places = torch.zeros(slots.shape[0], num_documents + 1, dtype=torch.long, device=hidden.device)
    places = places.scatter_(1, slots, tokens)[:, 1:]
    return hidden.gather(1, places[..., None].expand(-1, -1, hidden.shape[-1]))


def _pool_mean(hidden: Tensor, batch: PackedBatch, num_documents: int) -> Tensor:
    """Mean pooling as a matrix product in fp32, whose order of summation is the same in every run.

    For one row, in inference on a CPU, each document is summed by itself, so that the others change nothing.
    """
    if isinstance(batch, FlatBatch):
        tokens = torch.arange(hidden.shape[1], device=hidden.device)
        return F.embedding_bag(tokens, hidden[0].float(), batch.bounds.starts[:-1].long(), mode="mean")[None]
    if takes_documents_alone(hidden):
        return _add_up_documents(hidden[0].float(), batch.document_ids[0], num_documents)[None]
    numbers = torch.arange(1, num_documents + 1, device=hidden.device)
    belongs = (batch.document_ids[:, None, :] == numbers[:, None]).float()
    states = hidden.float().masked_fill(batch.is_padding[..., None], 0.0)
    with torch.autocast(hidden.device.type, enabled=False):
        return (belongs @ states) / belongs.sum(-1, keepdim=True).clamp(min=1.0)


def _add_up_documents(states: Tensor, document_ids: Tensor, num_documents: int) -> Tensor:
    """(N, D) means of states (S, D); padding, document 0, is left out."""
    counts = torch.bincount(document_ids, minlength=num_documents + 1)
    tokens = torch.argsort(document_ids, stable=True)
    offsets = counts.cumsum(0)[:num_documents] - counts[0]
    return F.embedding_bag(tokens[int(counts[0]) :], states, offsets, mode="mean")


class TaskOutput(dict[str, Tensor]):
    """A dictionary, so that any training loop can read it, whose keys are attributes too."""

    @property
    def loss(self) -> Tensor | None:
        return self.get("loss")

    @property
    def logits(self) -> Tensor:
        return self["logits"]


@dataclass(frozen=True)
class HeadFiles:
    """The description of a head in a model folder of Hugging Face's layout."""

    architecture: str
    modules: Mapping[str, str]
    """Their names of the head's modules; empty for a head that names its weights itself, or has none."""
    settings: Mapping[str, Any]
    """The head's settings in config.json."""
    small_files: Mapping[str, Any] = field(default_factory=dict)
    """Other JSON files, by name."""
    weights_file: str = WEIGHTS_FILE
    """Where the head's weights are; others than the encoder's for libraries that look for them there."""


class TaskHead(nn.Module, ABC):
    """The base class of task heads. Logits are of whole documents, or of tokens with `is_per_token`."""

    files: HeadFiles
    is_per_token: ClassVar[bool] = False
    """Whether logits are (B, S, C), of tokens, rather than (B, N, C), of documents."""
    is_recordable: ClassVar[bool] = True
    """Whether it never waits for the device, so that a CUDA graph can hold it."""
    needs_pretrained: bool = False
    """Whether a new one makes no sense without the weights that `list_adopted` names."""
    has_adopted: bool = False
    """Whether it has those weights."""

    @property
    @abstractmethod
    def output(self) -> nn.Linear | None:
        """The last layer, with one output per logit; None for a head without weights."""

    @abstractmethod
    def forward(self, hidden: Tensor, batch: PackedBatch, num_documents: int) -> Tensor:
        """Logits of hidden states (B, S, D)."""

    def name_weights(self) -> dict[str, str]:
        """Hugging Face's names of the head's weights, by ours."""
        modules = dict(self.named_modules())
        return {
            f"{ours}.{name}": f"{theirs}.{name}"
            for ours, theirs in self.files.modules.items()
            for name, _ in modules[ours].named_parameters()
        }

    def list_adopted(self) -> set[str]:
        """Our names of the weights that a pre-trained model may have: all but those of the last layer, as labels differ
        from task to task.
        """
        if self.output is None:
            return set()
        last = {id(param) for param in self.output.parameters()}
        return {name for name, param in self.named_parameters() if id(param) not in last}

    def prepare(self, encoder: nn.Module, batches: Iterable[PackedBatch]) -> str | None:
        """Prepare a new head by what it will be trained on, before training; returns what there is to say of it."""
        return None

    def fit_to(self, encoder: nn.Module) -> None:
        """Adapt the head to its encoder, if it was built without one."""

    def build_task(self) -> Task:
        """The task that the head was made for, if known."""
        raise InputError(f"a {type(self).__name__} does not say what it is asked; give the task")


@dataclass(frozen=True)
class SequenceHeadShape:
    activation: str = "tanh"
    pooling: Pooling = "cls"
    dropout: float = 0.1
    drops_input: bool = False
    """Whether dropout comes before the dense layer as well as after it."""
    has_dense_bias: bool = True
    norm_eps: float | None = None
    """Epsilon of a norm after the activation; None: no norm."""
    has_norm_bias: bool = False

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise InputError(
                f"no activation '{self.activation}' for a task's head{suggest(self.activation, ACTIVATIONS)}"
            )
        if self.pooling not in ("cls", "mean"):
            raise InputError(f"the pooling of a task's head is '{self.pooling}'; known are cls and mean")
        if not 0.0 <= self.dropout < 1.0:
            raise InputError(f"the dropout of a task's head is {self.dropout}; it must lie in [0, 1)")


class SequenceTransform(nn.Module):
    """A dense layer with an activation, then the logits: what all families have in common."""

    def __init__(self, width: int, num_outputs: int, shape: SequenceHeadShape, initializer_range: float = 0.02) -> None:
        super().__init__()
        self.shape = shape
        self.dense = RowLinear(width, width, bias=shape.has_dense_bias)
        self.activation = build_activation(shape.activation)
        self.norm = (
            nn.Identity()
            if shape.norm_eps is None
            else nn.LayerNorm(width, eps=shape.norm_eps, bias=shape.has_norm_bias)
        )
        self.dropout = Dropout(shape.dropout)
        self.output = RowLinear(width, num_outputs)
        init_weights(self, initializer_range)

    def forward(self, pooled: Tensor) -> Tensor:
        """(..., C) of (..., D)"""
        pooled = self.dropout(pooled) if self.shape.drops_input else pooled
        return self.output(self.dropout(self.norm(self.activation(self.dense(pooled)))))


class Answered(nn.Module):
    """A head for encoders whose class has its own head: the inputs are the logits."""

    output: nn.Linear

    def __init__(self, output: nn.Linear) -> None:
        """`output` is the last layer of that head; its weights belong to the encoder."""
        super().__init__()
        self.__dict__["output"] = output  # not as a module, whose weights would be counted twice

    def forward(self, logits: Tensor) -> Tensor:
        return logits


class SequenceHead(TaskHead):
    """Logits (B, N, C) of whole documents."""

    def __init__(self, transform: SequenceTransform | Answered, files: HeadFiles, pooling: Pooling = "cls") -> None:
        super().__init__()
        self.transform = transform
        self.files = files
        self.pooling: Pooling = pooling

    @property
    def output(self) -> nn.Linear:
        return self.transform.output

    def forward(self, hidden: Tensor, batch: PackedBatch, num_documents: int) -> Tensor:
        # `pool` takes a mean in fp32, also of a model in bf16
        return self.transform(pool(hidden, batch, num_documents, self.pooling).to(hidden.dtype))


def count_documents(batch: PackedBatch) -> int:
    """The largest number of documents in a row; synchronises with the device."""
    return int(torch.clamp(batch.document_ids.max(), min=1))


_DEFAULT_DROPOUT = 0.1
SEQUENCE_ARCHITECTURE = "ForSequenceClassification"


def build_sequence_head(encoder: PackedEncoder, num_outputs: int, config: Mapping[str, Any]) -> SequenceHead:
    """A new head like that of the encoder's family; `config` is the encoder's config.json."""
    transform, files = build_dense_transform(encoder, num_outputs, encoder.family.sequence_head, config)
    return SequenceHead(transform, files, transform.shape.pooling)


def build_dense_transform(
    encoder: PackedEncoder, num_outputs: int, layout: TaskHeadLayout, config: Mapping[str, Any]
) -> tuple[SequenceTransform, HeadFiles]:
    """The layers of a head with this layout, and the description of its files."""

    def read(name: str) -> Any:
        usual = getattr(layout, name)
        return config.get(layout.settings[name], usual) if name in layout.settings else usual

    dropout = read_dropout(layout, encoder, config)
    shape = SequenceHeadShape(
        activation=str(read("activation")),
        pooling=read("pooling"),
        dropout=dropout,
        drops_input=layout.drops_input,
        has_dense_bias=bool(read("has_dense_bias")),
        norm_eps=None if layout.norm is None else encoder.norm_eps,
        has_norm_bias=layout.norm is not None and encoder.mlm_norm_bias,
    )
    theirs = {"transform.dense": layout.dense, "transform.output": layout.output, "transform.norm": layout.norm}
    settings: dict[str, Any] = {} if layout.dropout_setting is None else {layout.dropout_setting: dropout}
    settings |= {name: getattr(shape, ours) for ours, name in layout.settings.items()}
    modules = {ours: name for ours, name in theirs.items() if name is not None}
    transform = SequenceTransform(encoder.hidden_size, num_outputs, shape, encoder.config.initializer_range)
    return transform, HeadFiles(layout.architecture, modules, settings)


def read_dropout(layout: TaskHeadLayout, encoder: PackedEncoder, config: Mapping[str, Any]) -> float:
    """The dropout of a head, as config.json says; without a setting or a default it is that of the hidden states."""
    setting = layout.dropout_setting
    given = None if setting is None else config.get(setting)
    if given is None:
        given = layout.default_dropout
    if given is None:
        given = getattr(encoder.config, "hidden_dropout_prob", _DEFAULT_DROPOUT)
    if not isinstance(given, int | float) or isinstance(given, bool):
        raise InputError(f"{CONFIG_FILE}: '{setting}' is {given!r}; expected a number such as 0.1")
    return float(given)


TOKEN_ARCHITECTURE = "ForTokenClassification"  # noqa: S105 (a name of transformers, no password)


class TokenTransform(nn.Module):
    """Dropout and the logits: the head of most families."""

    def __init__(self, width: int, num_outputs: int, dropout: float, initializer_range: float) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.output = RowLinear(width, num_outputs)
        init_weights(self, initializer_range)

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., C) of (..., D)"""
        return self.output(self.dropout(hidden))


class TokenHead(TaskHead):
    """Logits (B, S, C) of tokens; only those of words' first tokens are used."""

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
    """A new head like that of the encoder's family; `config` is the encoder's config.json."""
    return build_per_token(encoder, num_outputs, encoder.family.token_head, config)


def build_per_token(
    encoder: PackedEncoder, num_outputs: int, layout: TaskHeadLayout, config: Mapping[str, Any]
) -> TokenHead:
    """A per-token head with this layout."""
    if layout.dense is not None:
        return TokenHead(*build_dense_transform(encoder, num_outputs, layout, config))
    dropout = read_dropout(layout, encoder, config)
    settings: dict[str, Any] = {} if layout.dropout_setting is None else {layout.dropout_setting: dropout}
    plain = TokenTransform(encoder.hidden_size, num_outputs, dropout, encoder.config.initializer_range)
    return TokenHead(plain, HeadFiles(layout.architecture, {"transform.output": layout.output}, settings))


SPAN_ARCHITECTURE = "ForQuestionAnswering"


def build_span_head(encoder: PackedEncoder, num_outputs: int, config: Mapping[str, Any]) -> TokenHead:
    """A new head like that of the encoder's family; `config` is the encoder's config.json."""
    return build_per_token(encoder, num_outputs, encoder.family.span_head, config)


POOLINGS = ("mean", "cls")
SETTINGS_PART = "similarity"
"""The key of the task's settings in our part of config.json."""
RETRIEVAL_PART = "retrieval"
"""The key of what retrievers have beside those."""
TEXT_ROLES = ("query", "document")
"""What a text may be to a retriever, and the names of prompts in sentence-transformers."""


class EmbeddingHead(TaskHead):
    """Vectors (B, N, D) of whole documents."""

    output = None

    def __init__(self, pooling: Pooling, files: HeadFiles) -> None:
        super().__init__()
        self.pooling = pooling
        self.files = files

    def forward(self, hidden: Tensor, batch: PackedBatch, num_documents: int) -> Tensor:
        return pool(hidden, batch, num_documents, self.pooling).float()


def build_embedding_head(encoder: TunedEncoder, num_outputs: int, config: Mapping[str, Any]) -> EmbeddingHead:
    """The head for a config.json of the task."""
    settings = read_own_settings(config, SETTINGS_PART)
    pooling = check_pooling(str(settings.get("pooling")))
    given = settings.get("max_length")
    max_length = min(given, encoder.max_length) if isinstance(given, int) else encoder.max_length
    architecture = encoder.family.architectures[0] if isinstance(encoder, PackedEncoder) else name_encoder(encoder)
    described = describe_pooling(encoder.hidden_size, pooling, max_length)
    own = read_own_settings(config, RETRIEVAL_PART)
    prompts = {role: own[f"{role}_prompt"] for role in TEXT_ROLES if own.get(f"{role}_prompt")}
    described["config_sentence_transformers.json"]["prompts"] = prompts
    return EmbeddingHead(pooling, HeadFiles(architecture, {}, {}, described))


def check_pooling(name: str) -> Pooling:
    if name not in POOLINGS:
        raise InputError(f"no pooling '{name}'{suggest(name, POOLINGS)}")
    return cast(Pooling, name)
