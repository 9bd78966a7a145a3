"""Batches of examples of several texts, all texts of an example in one row.

B rows, P examples of a row, G texts of an example, N = P * G documents.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

import numpy as np
from numpy.typing import NDArray

from maskwright.batch import PackedBatch
from maskwright.errors import RunError
from maskwright.tasks.loader import TaskBatch, TaskLoader
from maskwright.tasks.similarity.group_features import GroupFeatures


@dataclass(frozen=True)
class WholeBatch(TaskBatch):
    """Examples that are each other's negatives, so that a part of them has another loss."""

    def rows(self, start: int, stop: int) -> Self:
        if start > 0 or stop < self.num_rows:
            raise RunError(
                "the pairs of a batch are compared with each other, so it cannot be worked on in parts; take a smaller"
                " --batch-size or --max-length, or training.activation_checkpointing=true"
            )
        return self


class GroupLoader(TaskLoader):
    """The documents of an example follow each other in a row, with its number and its target each.

    Sums over documents are then G times those over examples, and their means the same.
    """

    features: GroupFeatures

    @property
    def needs_whole_batches(self) -> bool:
        return self.features.are_compared

    def build_batch(self, examples: NDArray[np.int64]) -> TaskBatch:
        batch = super().build_batch(examples)
        values = {field.name: getattr(batch, field.name) for field in fields(batch)}
        values["targets"] = batch.known_targets.repeat_interleave(self.features.group_size, dim=1)
        return WholeBatch(**values) if self.needs_whole_batches else TaskBatch(**values)

    def _assemble(self, rows: list[NDArray[np.int64]], num_rows: int, row_length: int) -> PackedBatch:
        assembler = self._build_assembler(num_rows, row_length)
        if rows:
            size = self.features.group_size
            counts = np.asarray([len(row) * size for row in rows])
            examples = np.concatenate(rows)
            documents = (examples[:, None] * size + np.arange(size)).flatten()
            numbers = np.repeat(examples, size)
            assembler.add(np.arange(len(rows)), counts, self.features.store, self._plan, documents, numbers)
        return assembler.finish()
