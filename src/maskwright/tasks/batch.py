"""Packed rows with what is asked about their documents.

B rows, S row length, N the most documents of a row.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from torch import Tensor

from maskwright.batch import IS_ASKED, PackedBatch, Questions, find_asked
from maskwright.errors import InputError


@dataclass(frozen=True)
class TaskBatch(PackedBatch):
    """Packed rows with targets, whose shape is the task's: (B, N) for one of each document, (B, N, C) for C."""

    targets: Tensor | None = field(default=None, metadata=IS_ASKED)
    """The ignored label, or NaN among floats, where nothing is asked."""

    def __post_init__(self) -> None:
        PackedBatch(**{one.name: getattr(self, one.name) for one in fields(PackedBatch)})  # checks the shapes
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


@dataclass(frozen=True)
class AskedBatch(Questions):
    """Questions about documents or their words: the batch as it is, and its targets as `labels`."""

    @classmethod
    def of(cls, batch: PackedBatch) -> AskedBatch:
        if not isinstance(batch, TaskBatch):
            raise InputError("a task learns from batches with targets; build them with a TaskLoader")
        return cls(batch, batch.known_targets)
