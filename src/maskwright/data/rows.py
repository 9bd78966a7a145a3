"""Which samples share a row: decided once for a shard and a row length, the same in every run and epoch.

Documents of a row never see each other, so epochs need no new packing, only a new order of rows; that makes every
position of an epoch reachable without going through those before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

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


def pack_rows(lengths: Sequence[int], row_length: int) -> list[list[int]]:
    """Indices of the samples in each row; every sample is placed whole, longest first, where it fits tightest.

    Rows are kept by their free space, and one bit per free space tells which spaces occur, so finding the tightest
    row is a shift and a lowest-set-bit.
    """
    rows: list[list[int]] = []
    rows_by_space: list[list[int]] = [[] for _ in range(row_length + 1)]
    spaces_in_use = 0
    longest_first = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable").tolist()
    if longest_first and lengths[longest_first[0]] <= row_length < 2 * lengths[longest_first[-1]]:
        return [[sample] for sample in longest_first]  # no two share a row
    for sample in longest_first:
        length = lengths[sample]
        if not 0 < length <= row_length:
            raise ValueError(f"sample {sample} has {length} tokens; rows hold 1 to {row_length}")
        fitting = spaces_in_use >> length
        if fitting:
            space = length + (fitting & -fitting).bit_length() - 1
            row = rows_by_space[space].pop()
            if not rows_by_space[space]:
                spaces_in_use &= ~(1 << space)
        else:
            space, row = row_length, len(rows)
            rows.append([])
        rows[row].append(sample)
        rows_by_space[space - length].append(row)
        spaces_in_use |= 1 << (space - length)
    return rows
