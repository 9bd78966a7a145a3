"""Packed batches of a tokenized corpus, in an order that is a function of (seed, epoch). B rows, S row length.

Shards are put in a random order and taken a few at a time; the rows of such a group are shuffled together. So memory
and disk see a handful of shards at once, whatever the size of the corpus.
"""

from __future__ import annotations

import atexit
import copy
import math
import queue
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from maskwright.batch import PackedBatch
from maskwright.data.assembly import NUM_SPECIALS, BatchAssembler, RowPlan, SpecialIds
from maskwright.data.mixture import MixedOrder, Mixture
from maskwright.data.pairs import MIN_PAIR_TOKENS, NUM_PAIR_SPECIALS, PairAssembler, PairDraws, Pairing
from maskwright.data.shards import PreparedShards, Shards, StoresInMemory
from maskwright.data.store import SampleIndex, TokenStore
from maskwright.errors import InputError
from maskwright.randomness import Stream, compute_key, permutation

_SHARD_BITS, _PASS_BITS = 40, 58
"""A sample's number is its own, its shard's from one bit on, and from another the time it is shown in the epoch, so
that a sample of weight 2 is masked in two ways."""


class PackedLoader:
    """Iterates a corpus epoch by epoch; each sample of a shard of weight 1 appears exactly once per epoch.

    `rows_per_batch` counts the rows of all ranks: each rank gets its share of every batch, so the content of a batch
    does not depend on the number of ranks. `with_words` adds `word_starts` to the batches, for masking by words;
    `pairing` makes samples pairs of segments, with `token_type_ids` and `pair_labels`. A trainer compares the
    `tokenizer` that the ids come from with its model.
    """

    def __init__(
        self,
        store: TokenStore | Shards,
        *,
        cls_token_id: int,
        sep_token_id: int,
        pad_token_id: int,
        row_length: int,
        rows_per_batch: int,
        seed: int = 0,
        window: int = 10_000,
        shuffle: bool = True,
        rank: int = 0,
        world_size: int = 1,
        pin_memory: bool = False,
        with_words: bool = False,
        pairing: Pairing | None = None,
        tokenizer: Any = None,
    ) -> None:
        shortest_row = NUM_SPECIALS + 1 if pairing is None else NUM_PAIR_SPECIALS + MIN_PAIR_TOKENS
        if row_length < shortest_row:
            raise InputError(f"the row length is {row_length}; it must be at least {shortest_row}")
        for name, value in (("rows per batch", rows_per_batch), ("packing window", window)):
            if value < 1:
                raise InputError(f"the {name} is {value}; it must be at least 1")
        _check_rank(rank, world_size)
        self.shards = StoresInMemory([store]) if isinstance(store, TokenStore) else store
        if not self.shards.num_tokens:
            raise InputError("the corpus holds no tokens; there is nothing to train on")
        self.tokenizer = tokenizer
        self.row_length = row_length
        self.rows_per_batch = rows_per_batch
        self.seed = seed
        self.window = window
        self.shuffle = shuffle
        self.rank, self.world_size = rank, world_size
        self._pin_memory = pin_memory
        if with_words:
            self.shards.check_words()
        self._with_words = with_words
        if pairing is not None:
            pairing.check(self.shards, row_length - NUM_PAIR_SPECIALS)
        self._pairing = pairing
        self.num_specials = NUM_SPECIALS if pairing is None else NUM_PAIR_SPECIALS
        self._specials = SpecialIds(cls_token_id, sep_token_id, pad_token_id)
        self.mixture: Mixture | None = None
        """How sources are mixed; unset, by the weights of the shards."""
        self.parts: Mapping[str, PackedLoader] = {}
        """Loaders of the sources' own rows, by their names, where each is to be evaluated."""
        self._next_epoch = 0
        self._plan = lru_cache(maxsize=32)(self._build_plan)
        self._row_counts = self._count_rows()

    def __len__(self) -> int:
        """Batches in an epoch."""
        return math.ceil(self._order(0).num_rows / self.rows_per_batch)

    def __iter__(self) -> Iterator[PackedBatch]:
        """Iterate over the next epoch; each epoch has another order."""
        epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
        return self.epoch(epoch)

    @property
    def samples(self) -> SampleIndex:
        """The samples of the first shard that has any."""
        return self._plan(self._first_shard).samples

    @property
    def faster_advice(self) -> str:
        """Advice if training waits for batches."""
        if isinstance(self.shards, PreparedShards):
            return f"copy {self.shards.folder} to a local disk, or free CPU cores for the loader"
        return "run maskwright prepare and give its folder as data.train, or free CPU cores for the loader"

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[PackedBatch]:
        """The batches of one epoch from `start_batch` on, built ahead in the background."""
        return prefetch(self._batches(epoch, start_batch))

    def for_epoch(self, epoch: int) -> PackedLoader:
        """The loader of an epoch's data."""
        return self

    def locate_rows(self, epoch: int) -> Rows:
        """The places of all rows of an epoch, in order."""
        order = self._order(epoch)
        return order.locate(0, order.num_rows)

    def build_rows(self, rows: Rows, epoch: int) -> PackedBatch:
        """A batch of located rows."""
        return self._assemble(self._build_assembler(rows.shape[1], epoch), *rows)

    def for_rank(self, rank: int, world_size: int) -> Self:
        """The same loader for one of several processes."""
        _check_rank(rank, world_size)
        share = copy.copy(self)
        share.rank, share.world_size = rank, world_size
        share.parts = {name: part.for_rank(rank, world_size) for name, part in self.parts.items()}
        return share

    def for_shards(self, chosen: Collection[int]) -> Self:
        """A loader of the same samples in some of the shards alone, whose numbers and masks stay."""
        part = copy.copy(self)
        part.parts = {}
        part._row_counts = [count if shard in chosen else 0 for shard, count in enumerate(self._row_counts)]
        return part

    def utilisation(self) -> float:
        """The share of row positions in the first shard that hold tokens."""
        plan = self._plan(self._first_shard)
        num_tokens = int(plan.samples.lengths.sum()) + self.num_specials * len(plan.samples)
        return num_tokens / (plan.num_rows * self.row_length)

    def build_batch(self, rows: Sequence[Sequence[int]]) -> PackedBatch:
        """A batch of chosen samples of the first shard, by their numbers, row by row."""
        assembler = self._build_assembler(len(rows), epoch=0)
        samples = np.asarray([sample for row in rows for sample in row], dtype=np.int64)
        counts = np.asarray([len(row) for row in rows], dtype=np.int64)
        self._add(assembler, self._first_shard, np.arange(len(rows)), samples, counts, np.zeros_like(samples))
        return assembler.finish()

    def first_rows(self, num_rows: int) -> PackedBatch:
        """Rows of the first shard as they are packed, at most so many; no epoch is begun."""
        shard = self._first_shard
        rows = np.arange(min(num_rows, self._row_counts[shard]))
        once = np.zeros_like(rows)
        return self._assemble(self._build_assembler(len(rows), epoch=0), once + shard, rows, once)

    def _batches(self, epoch: int, start_batch: int) -> Iterator[PackedBatch]:
        order = self._order(epoch)
        for start in range(start_batch * self.rows_per_batch, order.num_rows, self.rows_per_batch):
            located = order.locate(start, start + self.rows_per_batch)
            # Where rows are too few for all ranks, some get a row of padding, so that all take the same steps.
            num_rows = math.ceil(located.shape[1] / self.world_size)
            assembler = self._build_assembler(num_rows, epoch)
            batch = self._assemble(assembler, *located[:, self.rank :: self.world_size])
            yield batch.pin_memory() if self._pin_memory else batch

    def _build_assembler(self, num_rows: int, epoch: int) -> BatchAssembler:
        arguments = (num_rows, self.row_length, self._specials, self._with_words)
        if self._pairing is None:
            return BatchAssembler(*arguments)
        # What is not shuffled is the same in every epoch and run, as an evaluation needs it.
        draws = PairDraws(self.seed, epoch) if self.shuffle else PairDraws(0, 0)
        return PairAssembler(*arguments, pairing=self._pairing, draws=draws)

    def _assemble(
        self, assembler: BatchAssembler, shards: NDArray[np.int64], rows: NDArray[np.int64], passes: NDArray[np.int64]
    ) -> PackedBatch:
        for shard in dict.fromkeys(shards.tolist()):
            places = np.nonzero(shards == shard)[0]
            samples, counts = self._plan(shard).samples_of(rows[places])
            self._add(assembler, shard, places, samples, counts, np.repeat(passes[places], counts))
        return assembler.finish()

    def _add(
        self,
        assembler: BatchAssembler,
        shard: int,
        places: NDArray[np.int64],
        samples: NDArray[np.int64],
        counts: NDArray[np.int64],
        passes: NDArray[np.int64],
    ) -> None:
        numbers = (passes << _PASS_BITS) + (shard << _SHARD_BITS) + samples
        assembler.add(places, counts, self.shards.store(shard), self._plan(shard), samples, numbers)

    @property
    def num_rows(self) -> int:
        """Rows of all shards, each counted once."""
        return sum(self._row_counts)

    @property
    def _first_shard(self) -> int:
        return next(shard for shard, num_rows in enumerate(self._row_counts) if num_rows)

    def _order(self, epoch: int) -> EpochOrder | MixedOrder:
        if self.mixture is not None:
            return MixedOrder(self._row_counts, self.mixture, seed=self.seed, epoch=epoch)
        return EpochOrder(self._row_counts, self.shards.weights, seed=self.seed, epoch=epoch, shuffle=self.shuffle)

    def _build_plan(self, shard: int) -> RowPlan:
        return RowPlan.build(self.shards.store(shard), self.row_length, self.window, self.num_specials)

    def _count_rows(self) -> list[int]:
        # What shards remember is how many rows plain samples take; pairs take others.
        known = self.shards.row_counts(self.row_length, self.window) if self._pairing is None else None
        if known is not None:
            return known
        counts = [self._plan(shard).num_rows for shard in range(self.shards.num_shards)]
        if self._pairing is None:
            self.shards.remember_row_counts(self.row_length, self.window, counts)
        return counts


def _check_rank(rank: int, world_size: int) -> None:
    if not 0 <= rank < world_size:
        raise InputError(f"the rank is {rank}; it must lie between 0 and {world_size - 1}")


Rows = NDArray[np.int64]
"""(3, rows): shard, row within the shard, and the number of the pass over that shard in the epoch."""


@dataclass(frozen=True)
class _Pass:
    """One pass over a shard, or over the first `num_rows` of its rows in the pass's own order."""

    shard: int
    number: int
    num_rows: int
    is_partial: bool


class EpochOrder:
    """A shard of weight w is read w times per epoch: 1 shows every row once, 0.5 a random half of them."""

    def __init__(
        self,
        row_counts: Sequence[int],
        weights: Sequence[float],
        *,
        seed: int,
        epoch: int,
        shuffle: bool,
        group_size: int = 4,
    ) -> None:
        self._row_counts = row_counts
        self._shuffle = shuffle
        self._key = compute_key(seed, epoch, Stream.ORDER)
        passes = list(_list_passes(row_counts, weights))
        if shuffle:
            passes = [passes[place] for place in permutation(len(passes), self._key).tolist()]
        self._groups = [passes[start : start + group_size] for start in range(0, len(passes), group_size)]
        self._ends = np.cumsum([sum(one.num_rows for one in group) for group in self._groups], dtype=np.int64)
        self._group_rows = lru_cache(maxsize=2)(self._build_group)

    @property
    def num_rows(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def locate(self, start: int, stop: int) -> Rows:
        """The rows at places `start` to `stop` of the epoch."""
        found = [np.empty((3, 0), np.int64)]
        stop = min(stop, self.num_rows)
        while start < stop:
            group = int(np.searchsorted(self._ends, start, side="right"))
            begin = int(self._ends[group - 1]) if group else 0
            until = min(stop, int(self._ends[group]))
            found.append(self._group_rows(group)[:, start - begin : until - begin])
            start = until
        return np.concatenate(found, axis=1)

    def _build_group(self, group: int) -> Rows:
        passes = self._groups[group]
        sizes = [one.num_rows for one in passes]
        shards = np.repeat([one.shard for one in passes], sizes)
        numbers = np.repeat([one.number for one in passes], sizes)
        found = np.stack([shards, np.concatenate([self._rows_of(one) for one in passes]), numbers]).astype(np.int64)
        if not self._shuffle:
            return found
        return found[:, permutation(found.shape[1], compute_key(self._key, group, Stream.ROWS)).numpy()]

    def _rows_of(self, one: _Pass) -> NDArray[np.int64]:
        if not one.is_partial:
            return np.arange(one.num_rows)
        key = compute_key(self._key, one.shard, Stream.PARTS)
        return permutation(self._row_counts[one.shard], key).numpy()[: one.num_rows]


def _list_passes(row_counts: Sequence[int], weights: Sequence[float]) -> list[_Pass]:
    passes = []
    for shard, (num_rows, weight) in enumerate(zip(row_counts, weights, strict=True)):
        whole, rest = int(weight), weight - int(weight)
        passes += [_Pass(shard, number, num_rows, is_partial=False) for number in range(whole)]
        if round(rest * num_rows):
            passes.append(_Pass(shard, whole, round(rest * num_rows), is_partial=True))
    return passes


Item = TypeVar("Item")


def prefetch(items: Iterable[Item], depth: int = 4) -> Iterator[Item]:
    """The same items in the same order; an error in the thread is raised where the item would have come.

    The thread ends when the items do or when the consumer stops iterating, who then waits for the item that is being
    built.
    """
    ready: queue.Queue[tuple[str, Item | BaseException | None]] = queue.Queue(maxsize=depth)
    stopped = threading.Event()

    def put(kind: str, value: Item | BaseException | None = None) -> bool:
        while not stopped.is_set():
            try:
                ready.put((kind, value), timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def produce() -> None:
        try:
            for item in items:
                if not put("item", item):
                    return
            put("end")
        except BaseException as error:  # handed to the consumer, which raises it
            put("error", error)

    def consume() -> Iterator[Item]:
        thread = threading.Thread(target=produce, daemon=True)

        def stop() -> None:
            stopped.set()
            thread.join()

        # A thread still inside native code while the interpreter shuts down would abort the process.
        atexit.register(stop)
        thread.start()
        try:
            while True:
                kind, value = ready.get()
                if kind == "end":
                    return
                if kind == "error":
                    assert isinstance(value, BaseException)
                    raise value
                yield value  # type: ignore[misc]
        finally:
            stop()
            atexit.unregister(stop)

    return consume()
