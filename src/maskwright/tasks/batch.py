"""Packed rows with what is asked about their documents.

B rows, S row length, N the most documents of a row.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from maskwright.batch import IGNORED_LABEL, PackedBatch
from maskwright.errors import InputError
from maskwright.masking.tokens import CorruptedBatch


@dataclass(frozen=True)
class TaskBatch(PackedBatch):
    """Packed rows with targets, whose shape is the task's: (B, N) for one of each document, (B, N, C) for C."""

    targets: Tensor | None = None
    """The ignored label, or NaN among floats, where nothing is asked."""

    def __post_init__(self) -> None:
        PackedBatch(**{field.name: getattr(self, field.name) for field in fields(PackedBatch)})  # checks the shapes
        if self.targets is not None and len(self.targets) != self.num_rows:
            raise InputError(f"targets are given for {len(self.targets)} rows; the batch has {self.num_rows}")

    @property
    def is_asked(self) -> Tensor:
        """(B, N), or (B, N, W) where W words of a document have one each, whether there is a target."""
        return find_asked(self.known_targets)

    @property
    def known_targets(self) -> Tensor:
        if self.targets is None:
            raise InputError("the batch has no targets to learn from; build it with a TaskLoader")
        return self.targets


def find_asked(targets: Tensor) -> Tensor:
    """Whether targets are there: (B, N) of (B, N) or (B, N, C), and (B, N, W) of (B, N, W, C)."""
    is_known = ~targets.isnan() if targets.is_floating_point() else targets != IGNORED_LABEL
    return is_known if is_known.ndim == 2 else is_known[..., 0]


@dataclass(frozen=True)
class AskedBatch(CorruptedBatch):
    """What a trainer takes a loss of: here nothing is corrupted, and `labels` are the targets."""

    @classmethod
    def of(cls, batch: PackedBatch) -> AskedBatch:
        if not isinstance(batch, TaskBatch):
            raise InputError("a task learns from batches with targets; build them with a TaskLoader")
        return cls(batch, batch.known_targets, num_slots=0)

    @property
    def task_batch(self) -> TaskBatch:
        assert isinstance(self.batch, TaskBatch)
        return self.batch

    @property
    def counts(self) -> Tensor:
        """(1,) the targets that the loss will be a sum over."""
        return find_asked(self.labels).sum()[None]


def fill_missing(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Targets that ask nothing."""
    return torch.full(shape, float("nan") if dtype.is_floating_point else IGNORED_LABEL, dtype=dtype)
