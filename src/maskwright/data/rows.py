"""Which samples share a row: decided once for a shard and a row length, the same in every run and epoch.

Documents of a row never see each other, so epochs need no new packing, only a new order of rows; that makes every
position of an epoch reachable without going through those before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from maskwright.data.packing import pack_rows
from maskwright.data.store import SampleIndex, TokenStore
from maskwright.randomness import Stream, compute_key, permutation

NUM_SPECIALS = 2
"""A sample is wrapped in [CLS] and [SEP]."""


@dataclass(frozen=True)
class RowPlan:
    """Row r of a shard holds the samples `order[ends[r - 1]:ends[r]]`."""

    samples: SampleIndex
    order: NDArray[np.int64]
    ends: NDArray[np.int64]

    @classmethod
    def build(cls, store: TokenStore, row_length: int, window: int, num_specials: int = NUM_SPECIALS) -> RowPlan:
        """Mix the samples, and pack `window` of them at a time by best fit."""
        samples = SampleIndex.build(store, row_length - num_specials)
        sizes = samples.lengths + num_specials
        mixed = permutation(len(samples), compute_key(0, 0, Stream.PACKING)).numpy()
        order, counts = [mixed[:0]], []
        for start in range(0, len(mixed), window):
            chosen = mixed[start : start + window]
            rows = pack_rows(sizes[chosen].tolist(), row_length)
            counts += [len(row) for row in rows]
            order.append(chosen[[place for row in rows for place in row]])
        return cls(samples, np.concatenate(order), np.cumsum(counts, dtype=np.int64))

    @property
    def num_rows(self) -> int:
        return len(self.ends)

    @cached_property
    def by_length(self) -> NDArray[np.int64]:
        """The samples from the shortest to the longest."""
        return np.argsort(self.samples.lengths, kind="stable")

    def samples_of(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The samples of some rows one after another, and how many each row has."""
        begins = np.where(rows > 0, self.ends[rows - 1], 0)
        counts = self.ends[rows] - begins
        shifts = np.repeat(begins - (np.cumsum(counts) - counts), counts)
        return self.order[shifts + np.arange(len(shifts))], counts
