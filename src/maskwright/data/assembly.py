"""Pack samples into rows: which samples share a row, and their tokens laid out as a `PackedBatch`.

B rows, S row length. Which samples share a row is decided once for a shard and a row length. Documents of a row never
see each other, so an epoch needs no new packing, only a new order of rows. That makes every position of an epoch
reachable without going through the positions before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from maskwright.batch import PackedBatch
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


Array = NDArray[np.int64]


@dataclass(frozen=True)
class SpecialIds:
    cls: int
    sep: int
    pad: int


class RowFiller:
    """The arrays of one batch, with the document id and the position of each token that is placed."""

    def __init__(self, num_rows: int, row_length: int, pad_token_id: int) -> None:
        self._shape = (num_rows, row_length)
        self._input_ids = np.full(num_rows * row_length, pad_token_id, dtype=np.int64)
        self._document_ids, self._positions, self._sample_ids = np.zeros((3, num_rows * row_length), dtype=np.int64)

    def lay_out(
        self, rows: Array, counts: Array, sizes: Array, sample_ids: Array
    ) -> tuple[Array, Array, NDArray[np.bool_]]:
        """Place documents of these sizes; returns for each token its place, its position and whether it is the last.

        Row `rows[i]` takes the next `counts[i]` of them.
        """
        ends = np.cumsum(sizes)
        first_samples = np.cumsum(counts) - counts
        row_begins = np.repeat((ends - sizes)[first_samples], counts)
        places = np.repeat(rows, counts) * self._shape[1] + (ends - sizes) - row_begins

        positions = np.arange(int(sizes.sum())) - np.repeat(ends - sizes, sizes)
        target = np.repeat(places, sizes) + positions
        is_last = np.zeros(len(positions), dtype=bool)
        is_last[ends - 1] = True
        documents = np.arange(len(sizes)) - np.repeat(first_samples, counts) + 1
        self._document_ids[target] = np.repeat(documents, sizes)
        self._positions[target] = positions
        self._sample_ids[target] = np.repeat(sample_ids, sizes)
        return target, positions, is_last

    def write(self, target: Array, ids: Array) -> None:
        """Write token ids to places."""
        self._input_ids[target] = ids

    def finish(self) -> PackedBatch:
        arrays = (self._input_ids, self._document_ids, self._positions, self._sample_ids)
        return PackedBatch(*(torch.from_numpy(array.reshape(self._shape)) for array in arrays))


class BatchAssembler(RowFiller):
    """Fills one batch from stores, shard by shard; with or without word boundaries."""

    def __init__(self, num_rows: int, row_length: int, specials: SpecialIds, with_words: bool = False) -> None:
        super().__init__(num_rows, row_length, specials.pad)
        self._specials = specials
        self._word_starts = np.ones(num_rows * row_length, dtype=bool) if with_words else None

    def add(
        self, rows: Array, counts: Array, store: TokenStore, plan: RowPlan, samples: Array, sample_ids: Array
    ) -> None:
        """Add samples of a shard: row `rows[i]` takes the next `counts[i]` of them."""
        sizes = plan.samples.lengths[samples] + NUM_SPECIALS
        target, positions, is_last = self.lay_out(rows, counts, sizes, sample_ids)
        source = np.repeat(plan.samples.starts[samples] - 1, sizes) + positions
        self._write_stored(target, store, source, is_first=positions == 0, is_separator=is_last)

    def _write_stored(
        self,
        target: Array,
        store: TokenStore,
        source: Array,
        is_first: NDArray[np.bool_],
        is_separator: NDArray[np.bool_],
    ) -> None:
        inside = ~(is_first | is_separator)
        tokens = np.empty(len(target), dtype=np.int64)
        tokens[inside] = store.ids[source[inside]]
        tokens[is_first], tokens[is_separator] = self._specials.cls, self._specials.sep
        self.write(target, tokens)
        if self._word_starts is not None:
            assert store.word_bits is not None
            self._word_starts[target[inside]] = read_bits(store.word_bits, source[inside])

    def finish(self) -> PackedBatch:
        batch = super().finish()
        if self._word_starts is None:
            return batch
        return replace(batch, word_starts=torch.from_numpy(self._word_starts.reshape(self._shape)))


@dataclass(frozen=True)
class PackedSamples:
    """Packed samples and their places in the rows. N samples, T tokens in total."""

    batch: PackedBatch
    places: Tensor
    """(T,) the place of each token in the flattened rows, sample after sample."""
    rows: Tensor
    """(N,) the row of each sample."""
    documents: Tensor
    """(N,) its number within the row, from 0."""
    num_documents: int
    """The largest number of samples in a row."""


def pack_samples(
    ids: Array, lengths: Array, row_length: int, pad_token_id: int, token_type_ids: Array | None = None
) -> PackedSamples:
    """Pack samples given one after another, special tokens included: ids (T,) and lengths (N,)."""
    rows = pack_rows(lengths.tolist(), row_length)
    counts, order = np.asarray([len(row) for row in rows]), np.concatenate(rows)
    filler = RowFiller(len(rows), row_length, pad_token_id)
    target, positions, _ = filler.lay_out(np.arange(len(rows)), counts, lengths[order], order)
    starts_by_row, starts = target[positions == 0], np.empty_like(order)
    starts[order] = starts_by_row
    places = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths) + np.arange(len(ids))
    filler.write(places, ids)
    batch = filler.finish()
    if token_type_ids is not None:
        types = np.zeros(batch.input_ids.numel(), dtype=np.int64)
        types[places] = token_type_ids
        batch = replace(batch, token_type_ids=torch.from_numpy(types.reshape(batch.input_ids.shape)))
    documents = np.empty_like(order)
    documents[order] = batch.document_ids.numpy().reshape(-1)[starts_by_row] - 1
    return PackedSamples(
        batch,
        places=torch.from_numpy(places),
        rows=torch.from_numpy(starts // row_length),
        documents=torch.from_numpy(documents),
        num_documents=int(counts.max()),
    )


def read_bits(bits: NDArray[np.uint8], places: Array) -> NDArray[np.bool_]:
    """The bits at some places of an array from `np.packbits`."""
    return (bits[places >> 3] >> (7 - (places & 7)).astype(np.uint8)) & 1 == 1
