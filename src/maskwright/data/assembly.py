"""Lay samples out in rows, many at once. B rows, S row length."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from maskwright.batch import PackedBatch
from maskwright.data.rows import NUM_SPECIALS
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
        self,
        rows: Array,
        counts: Array,
        store: TokenStore,
        starts: Array,
        lengths: Array,
        sample_ids: Array,
    ) -> None:
        """Put samples into rows: row `rows[i]` takes the next `counts[i]` of them."""
        sizes = lengths + NUM_SPECIALS
        ends = np.cumsum(sizes)
        first_samples = np.cumsum(counts) - counts
        row_begins = np.repeat((ends - sizes)[first_samples], counts)
        places = np.repeat(rows, counts) * self._shape[1] + (ends - sizes) - row_begins

        positions = np.arange(int(sizes.sum())) - np.repeat(ends - sizes, sizes)
        target = np.repeat(places, sizes) + positions
        source = np.repeat(starts - 1, sizes) + positions
        is_first, is_last = positions == 0, np.zeros(len(positions), dtype=bool)
        is_last[ends - 1] = True
        inside = ~(is_first | is_last)
        tokens = np.empty(len(positions), dtype=np.int64)
        tokens[inside] = store.ids[source[inside]]
        tokens[is_first], tokens[is_last] = self._specials.cls, self._specials.sep
        documents = np.arange(len(sizes)) - np.repeat(first_samples, counts) + 1

        self._input_ids[target] = tokens
        self._document_ids[target] = np.repeat(documents, sizes)
        self._positions[target] = positions
        self._sample_ids[target] = np.repeat(sample_ids, sizes)
        if self._word_starts is not None:
            assert store.word_bits is not None
            self._word_starts[target[inside]] = _read_bits(store.word_bits, source[inside])

    def finish(self) -> PackedBatch:
        arrays = (self._input_ids, self._document_ids, self._positions, self._sample_ids)
        batch = PackedBatch(*(torch.from_numpy(array.reshape(self._shape)) for array in arrays))
        if self._word_starts is None:
            return batch
        return replace(batch, word_starts=torch.from_numpy(self._word_starts.reshape(self._shape)))


def _read_bits(bits: NDArray[np.uint8], places: Array) -> NDArray[np.bool_]:
    """The bits at some places, as `np.packbits` lays them: the first is the highest of its byte."""
    return (bits[places >> 3] >> (7 - (places & 7)).astype(np.uint8)) & 1 == 1
