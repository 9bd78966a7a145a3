"""Packed batches of a tokenized corpus, in an order that is a function of (seed, epoch).

B rows, S row length.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
import torch

from maskwright.batch import PackedBatch
from maskwright.data.packing import pack_rows
from maskwright.data.prefetch import prefetch
from maskwright.data.store import SampleIndex, TokenStore
from maskwright.errors import InputError
from maskwright.randomness import Stream, compute_key, permutation

NUM_SPECIALS = 2
"""A sample is wrapped in [CLS] and [SEP]."""


class PackedLoader:
    """Iterates a store epoch by epoch; each sample appears exactly once per epoch.

    Samples are shuffled, taken `window` at a time, packed by best fit, and the rows of a window shuffled again.
    """

    def __init__(
        self,
        store: TokenStore,
        *,
        cls_token_id: int,
        sep_token_id: int,
        pad_token_id: int,
        row_length: int,
        rows_per_batch: int,
        seed: int = 0,
        window: int = 10_000,
        shuffle: bool = True,
    ) -> None:
        if row_length <= NUM_SPECIALS:
            raise InputError(f"the row length is {row_length}; it must be at least {NUM_SPECIALS + 1}")
        for name, value in (("rows per batch", rows_per_batch), ("packing window", window)):
            if value < 1:
                raise InputError(f"the {name} is {value}; it must be at least 1")
        if not store.num_documents:
            raise InputError("the corpus holds no tokens; there is nothing to train on")
        self.store = store
        self.samples = SampleIndex.build(store, row_length - NUM_SPECIALS)
        self.row_length = row_length
        self.rows_per_batch = rows_per_batch
        self.seed = seed
        self.window = window
        self.shuffle = shuffle
        self._cls, self._sep, self._pad = cls_token_id, sep_token_id, pad_token_id
        self._next_epoch = 0
        self._num_batches: dict[int, int] = {}

    def __len__(self) -> int:
        """Batches in the next epoch to be iterated; epochs differ by a row or two of packing."""
        return self.num_batches(self._next_epoch)

    def __iter__(self) -> Iterator[PackedBatch]:
        """The next epoch: iterating again gives another order."""
        epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
        return self.epoch(epoch)

    def num_batches(self, epoch: int) -> int:
        if epoch not in self._num_batches:
            num_rows = sum(1 for _ in self._rows(epoch))
            self._num_batches = {epoch: -(-num_rows // self.rows_per_batch)}
        return self._num_batches[epoch]

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[PackedBatch]:
        """The batches of one epoch from `start_batch` on, built ahead in the background."""
        return prefetch(self._batches(epoch, start_batch))

    def utilisation(self, epoch: int = 0) -> float:
        """The share of row places that hold a real token."""
        num_rows = sum(1 for _ in self._rows(epoch))
        num_tokens = int(self.samples.lengths.sum()) + NUM_SPECIALS * len(self.samples)
        return num_tokens / (num_rows * self.row_length)

    def _batches(self, epoch: int, start_batch: int) -> Iterator[PackedBatch]:
        rows = islice(self._rows(epoch), start_batch * self.rows_per_batch, None)
        while batch_rows := list(islice(rows, self.rows_per_batch)):
            yield self.build_batch(batch_rows)

    def _rows(self, epoch: int) -> Iterator[list[int]]:
        """The sample numbers of each row."""
        order = self._order(epoch, Stream.ORDER, len(self.samples))
        lengths = self.samples.lengths + NUM_SPECIALS
        for start in range(0, len(order), self.window):
            samples = order[start : start + self.window]
            rows = pack_rows(lengths[samples].tolist(), self.row_length)
            for row in self._order(epoch * len(self.samples) + start, Stream.ROWS, len(rows)):
                yield [int(samples[place]) for place in rows[row]]

    def _order(self, epoch: int, stream: Stream, num_items: int) -> np.ndarray:
        if not self.shuffle:
            return np.arange(num_items)
        return permutation(num_items, compute_key(self.seed, epoch, stream)).numpy()

    def build_batch(self, rows: list[list[int]]) -> PackedBatch:
        """A batch of the given rows, each a list of sample numbers."""
        shape = (len(rows), self.row_length)
        input_ids = np.full(shape, self._pad, dtype=np.int64)
        document_ids, positions, sample_ids = (np.zeros(shape, dtype=np.int64) for _ in range(3))
        for row, samples in enumerate(rows):
            begin = 0
            for document, sample in enumerate(samples, start=1):
                start, length = self.samples.starts[sample], self.samples.lengths[sample]
                end = begin + length + NUM_SPECIALS
                input_ids[row, begin] = self._cls
                input_ids[row, begin + 1 : end - 1] = self.store.ids[start : start + length]
                input_ids[row, end - 1] = self._sep
                document_ids[row, begin:end] = document
                positions[row, begin:end] = np.arange(end - begin)
                sample_ids[row, begin:end] = sample
                begin = end
        return PackedBatch(*map(torch.from_numpy, (input_ids, document_ids, positions, sample_ids)))
