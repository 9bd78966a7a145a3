"""Examples of several texts: each text a document of its own, all texts of an example in one row.

B rows, P examples of a row, G texts of an example, N = P * G documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np
from numpy.typing import NDArray

from maskwright.batch import PackedBatch
from maskwright.data.assembly import NUM_SPECIALS
from maskwright.data.store import TokenStore
from maskwright.errors import InputError, RunError
from maskwright.tasks.features import Features
from maskwright.tasks.loader import TaskBatch, TaskLoader
from maskwright.tasks.similarity.examples import SimilarityExample
from maskwright.text.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class GroupFeatures(Features):
    """The texts of an example are G documents that follow each other in the store."""

    group_size: int = 2
    are_compared: bool = False
    """Whether the loss compares the examples of a batch with each other."""

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Tokens of all texts of each example."""
        sizes: NDArray[np.int64] = (np.diff(self.store.offsets) + NUM_SPECIALS).reshape(-1, self.group_size).sum(1)
        return sizes


def featurize_groups(
    examples: Sequence[SimilarityExample], tokenizer: Tokenizer, max_length: int, are_compared: bool
) -> GroupFeatures:
    """Each text longer than the model loses its end; an example goes where one of its texts has no token."""
    group_size, max_tokens = len(examples[0].texts), max_length - NUM_SPECIALS
    ids = tokenizer.encode_batch([text for example in examples for text in example.texts])
    groups = [ids[start : start + group_size] for start in range(0, len(ids), group_size)]
    chosen = [number for number, group in enumerate(groups) if all(group)]
    if not chosen:
        raise InputError(f"no pair up to {examples[-1].place} has tokens of the model's vocabulary; check the columns")
    documents = [text[:max_tokens] for number in chosen for text in groups[number]]
    num_cut = sum(any(len(text) > max_tokens for text in groups[number]) for number in chosen)
    return GroupFeatures(
        store=TokenStore.from_documents(documents, tokenizer.vocab_size),
        examples=[examples[number] for number in chosen],
        num_cut=num_cut,
        num_empty=len(examples) - len(chosen),
        group_size=group_size,
        are_compared=are_compared,
    )


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
