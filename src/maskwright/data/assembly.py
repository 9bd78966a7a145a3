"""Lay samples out in rows, many at once: those of a store, or lists of token ids. B rows, S row length."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from maskwright.batch import PackedBatch
from maskwright.data.rows import NUM_SPECIALS, RowPlan, pack_rows
from maskwright.data.store import TokenStore

Array = NDArray[np.int64]


@dataclass(frozen=True)
class SpecialIds:
    cls: int
    sep: int
    pad: int


class RowFiller:
    """The arrays of one batch: says for tokens that are laid out which document they are of and where in it."""

    def __init__(self, num_rows: int, row_length: int, pad_token_id: int) -> None:
        self._shape = (num_rows, row_length)
        self._input_ids = np.full(num_rows * row_length, pad_token_id, dtype=np.int64)
        self._document_ids, self._positions, self._sample_ids = np.zeros((3, num_rows * row_length), dtype=np.int64)

    def lay_out(
        self, rows: Array, counts: Array, sizes: Array, sample_ids: Array
    ) -> tuple[Array, Array, NDArray[np.bool_]]:
        """Place documents of these sizes: for each of their tokens its place, its position and whether it is last.

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
        """Put token ids to places."""
        self._input_ids[target] = ids

    def finish(self) -> PackedBatch:
        arrays = (self._input_ids, self._document_ids, self._positions, self._sample_ids)
        return PackedBatch(*(torch.from_numpy(array.reshape(self._shape)) for array in arrays))


class BatchAssembler(RowFiller):
    """Fills one batch from stores, shard by shard; with or without the beginnings of words."""

    def __init__(self, num_rows: int, row_length: int, specials: SpecialIds, with_words: bool = False) -> None:
        super().__init__(num_rows, row_length, specials.pad)
        self._specials = specials
        self._word_starts = np.ones(num_rows * row_length, dtype=bool) if with_words else None

    def add(
        self, rows: Array, counts: Array, store: TokenStore, plan: RowPlan, samples: Array, sample_ids: Array
    ) -> None:
        """Put samples of a shard into rows: row `rows[i]` takes the next `counts[i]` of them."""
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
    """Samples in rows, and where they are found there. N samples, T tokens of all."""

    batch: PackedBatch
    places: Tensor
    """(T,) the place of each token in the flattened rows, sample after sample."""
    rows: Tensor
    """(N,) the row of each sample."""
    documents: Tensor
    """(N,) its number within the row, from 0."""
    num_documents: int
    """The most samples of a row."""


def pack_samples(
    ids: Array, lengths: Array, row_length: int, pad_token_id: int, token_type_ids: Array | None = None
) -> PackedSamples:
    """Samples of whole ids, special tokens included, given one after another: ids (T,) and lengths (N,)."""
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
    """The bits at some places, as `np.packbits` lays them: the first is the highest of its byte."""
    return (bits[places >> 3] >> (7 - (places & 7)).astype(np.uint8)) & 1 == 1
