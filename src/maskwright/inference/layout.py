"""Samples to packed rows. T tokens of all samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from maskwright.batch import PADDING_DOCUMENT, PackedBatch
from maskwright.data.packing import pack_rows
from maskwright.inference.samples import Sample


@dataclass(frozen=True)
class RowShape:
    """How long rows are: as the longest sample, or several times that so that very short ones share rows."""

    least: int
    multiple: int

    def choose(self, longest: int) -> int:
        """Samples come sorted, so those of a batch are nearly equal and fill a multiple of the longest well."""
        length = longest * max(1, self.least // longest)
        return math.ceil(length / self.multiple) * self.multiple


def lay_out(samples: Sequence[Sample], shape: RowShape, pad_token_id: int) -> tuple[PackedBatch, Tensor]:
    """A batch of all samples, and the flat place (T,) of each of their tokens in it, sample after sample."""
    lengths = np.array([len(sample.ids) for sample in samples])
    row_length = shape.choose(int(lengths.max()))
    rows = pack_rows(lengths.tolist(), row_length)
    starts, documents = np.empty((2, len(samples)), dtype=np.int64)
    for number, row in enumerate(rows):
        ends = np.cumsum(lengths[row])
        starts[row] = number * row_length + ends - lengths[row]
        documents[row] = np.arange(1, len(row) + 1)
    positions = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    places = np.repeat(starts, lengths) + positions

    def spread(values: np.ndarray[tuple[int, ...], np.dtype[np.int64]], empty: int) -> Tensor:
        flat = np.full(len(rows) * row_length, empty, dtype=np.int64)
        flat[places] = values
        return torch.from_numpy(flat.reshape(len(rows), row_length))

    def join(parts: Sequence[Sequence[int]]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        return np.fromiter(chain.from_iterable(parts), dtype=np.int64, count=len(places))

    has_segments = any(sample.token_type_ids is not None for sample in samples)
    segments = [sample.token_type_ids or [0] * len(sample.ids) for sample in samples] if has_segments else None
    batch = PackedBatch(
        input_ids=spread(join([sample.ids for sample in samples]), pad_token_id),
        document_ids=spread(np.repeat(documents, lengths), PADDING_DOCUMENT),
        positions=spread(positions, 0),
        sample_ids=spread(np.repeat(np.arange(len(samples)), lengths), 0),
        token_type_ids=None if segments is None else spread(join(segments), 0),
    )
    return batch, torch.from_numpy(places)
