"""The order of rows in an epoch: a function of (seed, epoch) that can be asked for any stretch of it.

Shards are put in a random order and taken a few at a time; the rows of such a group are shuffled together. So memory
and disk see a handful of shards at once, whatever the size of the corpus.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from maskwright.randomness import Stream, compute_key, permutation

Rows = NDArray[np.int64]
"""(3, rows): shards, rows within them, and the how-manieth time in the epoch that the shard is gone through."""


@dataclass(frozen=True)
class _Pass:
    """One time through a shard, or through the first `num_rows` of its rows in an order of its own."""

    shard: int
    number: int
    num_rows: int
    is_partial: bool


class EpochOrder:
    """A shard of weight w is gone through w times: 1 shows every row once, 0.5 a random half of them each epoch."""

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
