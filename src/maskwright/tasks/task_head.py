"""What stands on an encoder: hidden states of packed rows to logits.

B rows, S row length, N documents of a row, D width, C outputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from maskwright.batch import PackedBatch
from maskwright.errors import InputError
from maskwright.models.init import init_weights
from maskwright.models.layers import ACTIVATIONS, Dropout, build_activation
from maskwright.suggestions import suggest
from maskwright.tasks.pooling import Pooling, pool
from maskwright.tasks.task import Task


@dataclass(frozen=True)
class HeadFiles:
    """How a model folder of Hugging Face's layout writes a head down."""

    architecture: str
    modules: Mapping[str, str]
    """Their names of the head's modules."""
    settings: Mapping[str, Any]
    """What config.json says of the head."""
    small_files: Mapping[str, Any] = field(default_factory=dict)
    """What further JSON files hold, by their names."""


class TaskHead(nn.Module, ABC):
    """One subclass for each place that logits are made of: whole documents here, their tokens elsewhere."""

    files: HeadFiles
    is_per_token: ClassVar[bool] = False
    """Whether logits are (B, S, C), of tokens, rather than (B, N, C), of documents."""

    @property
    @abstractmethod
    def output(self) -> nn.Linear | None:
        """The last layer, whose size is the task's; None for a head without weights."""

    @abstractmethod
    def forward(self, hidden: Tensor, batch: PackedBatch, num_documents: int) -> Tensor:
        """Logits of hidden states (B, S, D)."""

    def fit_to(self, encoder: nn.Module) -> None:
        """Take note of the encoder that it stands on; one that was built for its encoder knows it."""

    def build_task(self) -> Task:
        """The task it was made for, if it knows."""
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
    """Of a norm behind the activation; None: there is none."""
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
        self.dense = nn.Linear(width, width, bias=shape.has_dense_bias)
        self.activation = build_activation(shape.activation)
        self.norm = (
            nn.Identity()
            if shape.norm_eps is None
            else nn.LayerNorm(width, eps=shape.norm_eps, bias=shape.has_norm_bias)
        )
        self.dropout = Dropout(shape.dropout)
        self.output = nn.Linear(width, num_outputs)
        init_weights(self, initializer_range)

    def forward(self, pooled: Tensor) -> Tensor:
        """(..., C) of (..., D)"""
        pooled = self.dropout(pooled) if self.shape.drops_input else pooled
        return self.output(self.dropout(self.norm(self.activation(self.dense(pooled)))))


class Answered(nn.Module):
    """Stands where the encoder's class has a head of its own: what comes in are the logits."""

    output: nn.Linear

    def __init__(self, output: nn.Linear) -> None:
        """`output` is the last layer of that head, which stays the encoder's alone."""
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
        return self.transform(pool(hidden, batch, num_documents, self.pooling))


def count_documents(batch: PackedBatch) -> int:
    """The most documents of a row; waits for the device."""
    return int(torch.clamp(batch.document_ids.max(), min=1))


def name_head_weights(task_head: TaskHead) -> dict[str, str]:
    """Hugging Face's names of the head's weights, by ours."""
    modules = dict(task_head.named_modules())
    return {
        f"{ours}.{name}": f"{theirs}.{name}"
        for ours, theirs in task_head.files.modules.items()
        for name, _ in modules[ours].named_parameters()
    }
