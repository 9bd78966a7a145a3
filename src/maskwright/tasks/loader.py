"""Batches of a fixed number of examples, packed into rows with their targets, in an order that is a function of (seed,
epoch).

A batch holds as many examples as a padded one, so published learning rates and batch sizes apply. B rows, S row length,
N the most documents of a row.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from maskwright.batch import IS_ASKED, PackedBatch, Questions, fill_missing, find_asked
from maskwright.data.assembly import BatchAssembler, RowPlan, SpecialIds, pack_rows
from maskwright.data.given_pairs import GivenPairs
from maskwright.data.loader import prefetch
from maskwright.data.pairs import PairAssembler, PairDraws
from maskwright.data.store import SampleIndex
from maskwright.errors import InputError
from maskwright.randomness import Stream, compute_key, permutation
from maskwright.tasks.features import Features
from maskwright.text.tokenizer.tokenizer import Tokenizer

_NO_ROWS = np.empty(0, np.int64)
_SHORT_ROW = 128
"""Short examples share rows of up to this length; in longer rows attention would cost more than packing saves."""
_LONG_STEP = 64
"""With few shapes, the length of long rows is a multiple of this; that of short ones of a half."""
_CHEAP_TOKENS = 256
"""Tokens that a GPU computes beside others in no time, by which rows are rounded up."""
_DOCUMENT_SLOTS = 2048
"""With few shapes, rows of S tokens have targets for this divided by S documents at least."""
_POOL_BATCHES = 50
"""Batches that are cut from one pool: enough to be even, few enough to differ from epoch to epoch."""


@dataclass(frozen=True)
class TaskBatch(PackedBatch):
    """Packed rows with targets, whose shape is the task's: (B, N) for one of each document, (B, N, C) for C."""

    targets: Tensor | None = field(default=None, metadata=IS_ASKED)
    """The ignored label, or NaN among floats, where there is no target."""

    def __post_init__(self) -> None:
        PackedBatch(**{one.name: getattr(self, one.name) for one in fields(PackedBatch)})  # checks the shapes
        if self.targets is not None and len(self.targets) != self.num_rows:
            raise InputError(f"targets are given for {len(self.targets)} rows; the batch has {self.num_rows}")

    @property
    def is_asked(self) -> Tensor:
        """(B, N), or (B, N, W) with one target per word: whether there is a target."""
        return find_asked(self.known_targets)

    @property
    def known_targets(self) -> Tensor:
        if self.targets is None:
            raise InputError("the batch has no targets to learn from; build it with a TaskLoader")
        return self.targets


@dataclass(frozen=True)
class WholeBatch(TaskBatch):
    """A batch that must not be split, because its examples are each other's negatives.

    Where it is too large, its rows are encoded part by part, without activations, and once more for the gradients of
    each part (Gao et al. 2021, GradCache): the loss is that of the whole batch.
    """

    rows_at_once: int | None = field(default=None, kw_only=True)
    """None: all."""

    def cut(self, num_rows: int) -> list[Self]:
        """The whole batch, whose rows are encoded so many at a time."""
        return [self if num_rows >= self.num_rows else replace(self, rows_at_once=num_rows)]

    @property
    def is_recomputed(self) -> bool:
        return self.rows_at_once is not None

    def list_parts(self) -> list[Self]:
        """What is encoded at a time."""
        return super().cut(self.rows_at_once or self.num_rows)

    def map_fields(self, function: Callable[[Tensor], Tensor]) -> Self:
        given = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "rows_at_once"}
        mapped: dict[str, Any] = {name: function(value) for name, value in given.items() if value is not None}
        return replace(self, **mapped)


@dataclass(frozen=True)
class AskedBatch(Questions):
    """The unchanged batch with its targets as `labels`, for documents or their words."""

    @classmethod
    def of(cls, batch: PackedBatch) -> AskedBatch:
        if not isinstance(batch, TaskBatch):
            raise InputError("a task learns from batches with targets; build them with a TaskLoader")
        return cls(batch, batch.known_targets)


class TaskLoader:
    """Iterates examples epoch by epoch; a rank gets its share of the rows of every batch."""

    def __init__(
        self,
        features: Features,
        targets: Tensor,
        tokenizer: Tokenizer,
        *,
        batch_size: int,
        seed: int = 0,
        shuffle: bool = True,
        groups_lengths: bool = False,
    ) -> None:
        """`targets` has one row for each example of `features`.

        With `groups_lengths` the examples of a batch have similar lengths, for encoders that pad.
        """
        self.features = features
        self.targets = targets
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self.groups_lengths = groups_lengths
        self.rank, self.world_size = 0, 1
        self.has_few_shapes = False
        """Whether batches are padded so that they share a few shapes."""
        self._sizes = features.sizes
        self.longest = int(self._sizes.max())
        self._specials = SpecialIds(tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id)
        self._plan = RowPlan(SampleIndex.build(features.store, self.longest), _NO_ROWS, _NO_ROWS)

    @property
    def faster_advice(self) -> str:
        """Advice if training waits for batches, which are built from tokens in memory."""
        return "free CPU cores for the loader, which other processes take"

    @property
    def num_examples(self) -> int:
        return len(self._sizes)

    @property
    def needs_whole_batches(self) -> bool:
        """Whether a batch must not be split, because the loss compares its examples."""
        return False

    @property
    def num_tokens(self) -> int:
        return int(self._sizes.sum())

    def __len__(self) -> int:
        """Batches in an epoch."""
        return math.ceil(self.num_examples / self.batch_size)

    def __iter__(self) -> Iterator[PackedBatch]:
        """The first epoch."""
        return self.epoch(0)

    def for_rank(self, rank: int, world_size: int) -> Self:
        """The same loader for one of several processes."""
        share = copy.copy(self)
        share.rank, share.world_size = rank, world_size
        return share

    def with_seed(self, seed: int) -> Self:
        """The same examples in another order."""
        other = copy.copy(self)
        other.seed = seed
        return other

    def with_batch_size(self, batch_size: int) -> Self:
        """The same examples in other batches."""
        other = copy.copy(self)
        other.batch_size = batch_size
        return other

    def with_few_shapes(self) -> Self:
        """The same examples in the same batches, padded to a few shapes, which CUDA graphs are captured for."""
        other = copy.copy(self)
        other.has_few_shapes = True
        return other

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[PackedBatch]:
        """The batches of one epoch from `start_batch` on, built ahead in the background."""
        return prefetch(self._batches(epoch, start_batch))

    def _batches(self, epoch: int, start_batch: int) -> Iterator[PackedBatch]:
        order = np.arange(self.num_examples)
        if self.shuffle:
            order = permutation(self.num_examples, compute_key(self.seed, epoch, Stream.ORDER)).numpy()
        # Examples that are each other's negatives stay as the order has them: who they are is part of the loss.
        if self.groups_lengths and not self.needs_whole_batches:
            order = self._group_lengths(order, compute_key(self.seed, epoch, Stream.ROWS))
        for start in range(start_batch * self.batch_size, self.num_examples, self.batch_size):
            batch = self.build_batch(order[start : start + self.batch_size])
            yield batch.pin_memory() if torch.cuda.is_available() else batch

    def _group_lengths(self, order: NDArray[np.int64], key: int) -> NDArray[np.int64]:
        """An order whose batches come from pools sorted by length; full batches are shuffled again."""
        pool_size = _POOL_BATCHES * self.batch_size
        pools = np.split(order, range(pool_size, len(order), pool_size))
        grouped = np.concatenate([pool[np.argsort(-self._sizes[pool], kind="stable")] for pool in pools])
        num_full = len(grouped) // self.batch_size
        if self.shuffle:
            full = grouped[: num_full * self.batch_size].reshape(num_full, self.batch_size)
            grouped[: full.size] = full[permutation(num_full, key).numpy()].ravel()
        return grouped

    def build_batch(self, examples: NDArray[np.int64]) -> TaskBatch:
        """This rank's rows of a batch of these examples."""
        sizes = self._sizes[examples]
        row_length = self._choose_row_length(sizes)
        rows = [examples[row] for row in pack_rows(sizes.tolist(), row_length)]
        num_documents = max(len(row) for row in rows)
        # Where rows are too few for all ranks, some get a row of padding, so that all take the same steps.
        num_rows = math.ceil(len(rows) / self.world_size)
        if self.has_few_shapes:
            num_rows, num_documents = round_rows(num_rows, row_length), round_documents(num_documents, row_length)
        own = rows[self.rank :: self.world_size]
        targets = fill_missing((num_rows, num_documents, *self.targets.shape[1:]), self.targets.dtype)
        for number, row in enumerate(own):
            targets[number, : len(row)] = self.targets[torch.from_numpy(row)]
        return _with_targets(self._assemble(own, num_rows, row_length), targets)

    def _choose_row_length(self, sizes: NDArray[np.int64]) -> int:
        """The length of the longest example, or more where several fit in a row, but short enough to give every rank a
        row.
        """
        share = math.ceil(int(sizes.sum()) / self.world_size)
        row_length = max(int(sizes.max()), min(_SHORT_ROW, share))
        return round_length(row_length) if self.has_few_shapes else row_length

    def _assemble(self, rows: list[NDArray[np.int64]], num_rows: int, row_length: int) -> PackedBatch:
        assembler = self._build_assembler(num_rows, row_length)
        if rows:
            counts = np.asarray([len(row) for row in rows])
            examples = np.concatenate(rows)
            assembler.add(np.arange(len(rows)), counts, self.features.store, self._plan, examples, examples)
        return assembler.finish()

    def _build_assembler(self, num_rows: int, row_length: int) -> BatchAssembler:
        if not self.features.are_pairs:
            return BatchAssembler(num_rows, row_length, self._specials)
        return PairAssembler(num_rows, row_length, self._specials, pairing=GivenPairs(), draws=PairDraws(0, 0))


def round_length(row_length: int) -> int:
    return _round_up(row_length, _LONG_STEP if row_length > _SHORT_ROW else _LONG_STEP // 2)


def round_rows(num_rows: int, row_length: int) -> int:
    """Four numbers to each power of two, or fewer where rows are short."""
    return _round_up(num_rows, max(1, _CHEAP_TOKENS // row_length, 1 << max(0, num_rows.bit_length() - 3)))


def round_documents(num_documents: int, row_length: int) -> int:
    """A power of two; the loss of a few documents more costs nothing."""
    return 1 << (max(1, num_documents, _DOCUMENT_SLOTS // row_length) - 1).bit_length()


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step


def _with_targets(batch: PackedBatch, targets: Tensor) -> TaskBatch:
    values = {one.name: getattr(batch, one.name) for one in fields(batch)}
    return TaskBatch(**{**values, "pair_labels": None}, targets=targets)
