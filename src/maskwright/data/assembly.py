"""Lay samples out in rows, many at once. B rows, S row length."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from maskwright.batch import PackedBatch
from maskwright.data.rows import NUM_SPECIALS, RowPlan
from maskwright.data.store import TokenStore

Array = NDArray[np.int64]


@dataclass(frozen=True)
class SpecialIds:
    cls: int
    sep: int
    pad: int


class BatchAssembler:
    """Fills the arrays of one batch, shard by shard; with or without the beginnings of words."""

    def __init__(self, num_rows: int, row_length: int, specials: SpecialIds, with_words: bool = False) -> None:
        self._shape = (num_rows, row_length)
        self._specials = specials
        self._input_ids = np.full(num_rows * row_length, specials.pad, dtype=np.int64)
        self._document_ids, self._positions, self._sample_ids = np.zeros((3, num_rows * row_length), dtype=np.int64)
        self._word_starts = np.ones(num_rows * row_length, dtype=bool) if with_words else None

    def add(
        self, rows: Array, counts: Array, store: TokenStore, plan: RowPlan, samples: Array, sample_ids: Array
    ) -> None:
        """Put samples of a shard into rows: row `rows[i]` takes the next `counts[i]` of them."""
        sizes = plan.samples.lengths[samples] + NUM_SPECIALS
        target, positions, is_last = self._lay_out(rows, counts, sizes, sample_ids)
        source = np.repeat(plan.samples.starts[samples] - 1, sizes) + positions
        self._write(target, store, source, is_first=positions == 0, is_separator=is_last)

    def _lay_out(
        self, rows: Array, counts: Array, sizes: Array, sample_ids: Array
    ) -> tuple[Array, Array, NDArray[np.bool_]]:
        """Place documents of these sizes: for each of their tokens its place, its position and whether it is last."""
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

    def _write(
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
        self._input_ids[target] = tokens
        if self._word_starts is not None:
            assert store.word_bits is not None
            self._word_starts[target[inside]] = read_bits(store.word_bits, source[inside])

    def finish(self) -> PackedBatch:
        arrays = (self._input_ids, self._document_ids, self._positions, self._sample_ids)
        batch = PackedBatch(*(torch.from_numpy(array.reshape(self._shape)) for array in arrays))
        if self._word_starts is None:
            return batch
        return replace(batch, word_starts=torch.from_numpy(self._word_starts.reshape(self._shape)))


def read_bits(bits: NDArray[np.uint8], places: Array) -> NDArray[np.bool_]:
    """The bits at some places, as `np.packbits` lays them: the first is the highest of its byte."""
    return (bits[places >> 3] >> (7 - (places & 7)).astype(np.uint8)) & 1 == 1
