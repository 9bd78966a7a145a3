"""Samples, how a batch of them is laid out in rows, and what is read of its hidden states.

B rows, S row length, N samples, T tokens of all of them, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from maskwright.batch import DocumentBounds, FlatBatch, PackedBatch
from maskwright.data.assembly import PackedSamples, pack_samples

SampleT_co = TypeVar("SampleT_co", bound="Sample", covariant=True)
TokenIds = Sequence[int] | NDArray[np.int64]


@dataclass(slots=True)
class Sample:
    """Token ids that the encoder reads as one document, special tokens included."""

    ids: TokenIds
    token_type_ids: TokenIds | None = None
    """Of pairs of texts; None: all tokens are of the first segment."""
    num_documents: int = field(default=1, kw_only=True)
    """More than one: the ids are those of so many documents of one length, one after another."""

    @property
    def document_length(self) -> int:
        return len(self.ids) // self.num_documents


@dataclass(frozen=True)
class EncodedBatch(Generic[SampleT_co]):
    """Some samples and the hidden states of their packed rows."""

    samples: Sequence[SampleT_co]
    packed: PackedSamples
    states: Tensor
    """(B, S, D)"""

    @property
    def batch(self) -> PackedBatch:
        return self.packed.batch

    @property
    def lengths(self) -> list[int]:
        """The tokens of each sample."""
        return [len(sample.ids) for sample in self.samples]

    @property
    def hidden(self) -> Tensor:
        """(T, D), one sample after another."""
        return self.list_tokens(self.states)

    def list_tokens(self, values: Tensor) -> Tensor:
        """(T, ...) of values (B, S, ...) of the rows: those of each sample's tokens, one sample after another."""
        if isinstance(self.batch, FlatBatch):
            return values[0]
        return values.flatten(0, 1)[self.packed.places]

    def list_samples(self, values: Tensor) -> Tensor:
        """(N, ...) of values (B, documents of a row, ...): that of each sample."""
        if isinstance(self.batch, FlatBatch):
            return values[0]
        return values[self.packed.rows, self.packed.documents]

    def take(self, places: Sequence[TokenIds]) -> Tensor:
        """Hidden states at some places of each sample, counted in its ids, one sample after another."""
        lengths = self.lengths
        firsts = np.repeat(np.cumsum(lengths) - lengths, [len(one) for one in places])
        chosen = self.send(firsts + np.concatenate([np.asarray(one) for one in places]))
        return self.states.flatten(0, 1)[chosen if isinstance(self.batch, FlatBatch) else self.packed.places[chosen]]

    def send(self, values: NDArray[Any]) -> Tensor:
        """An array on the device of the hidden states, without waiting for it."""
        return send(torch.from_numpy(values), self.states.device)

    def split(self) -> list[Tensor]:
        """The hidden states of each sample."""
        return list(torch.split(self.hidden, self.lengths))


@dataclass(frozen=True)
class Reduction:
    """What is needed of a batch: tensors on its device, and how they become one result to each sample.

    `split` gets them on the CPU, later: it must hold no tensor of the device, which would be kept until then.
    """

    tensors: tuple[Tensor, ...]
    split: Callable[..., Sequence[Any]]


def list_rows(values: Tensor) -> list[NDArray[np.float32]]:
    """The rows of a batch's results as views of one array."""
    return list(values.numpy())


def send(values: Tensor, device: torch.device) -> Tensor:
    """A copy on a device that nothing waits for; on the CPU the same."""
    if device.type != "cuda":
        return values.to(device)
    pinned = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return _fill_alone(pinned, values).to(device, non_blocking=True)


def copy_alone(values: Tensor) -> Tensor:
    """A copy of a tensor on the CPU, by this thread: torch's own wakes a thread on every core, which then waits busily
    for more to do and takes half of the time that the tokenizer's threads need."""
    return _fill_alone(torch.empty(values.shape, dtype=values.dtype), values)


def _fill_alone(target: Tensor, values: Tensor) -> Tensor:
    _list_bytes(target)[...] = _list_bytes(values)
    return target


def _list_bytes(values: Tensor) -> NDArray[np.uint8]:
    return values.reshape(-1).view(torch.uint8).numpy()


def send_samples(packed: PackedSamples, device: torch.device) -> PackedSamples:
    if device.type == "cpu":
        return packed
    return replace(
        packed,
        batch=packed.batch.map_fields(lambda values: send(values, device)),
        places=send(packed.places, device),
        rows=send(packed.rows, device),
        documents=send(packed.documents, device),
    )


@dataclass(frozen=True)
class RowShape:
    """How long rows are: as the longest sample, or several times that so that very short ones share rows."""

    least: int
    multiple: int

    def choose(self, longest: int) -> int:
        """Samples come sorted, so those of a batch are nearly equal and fill a multiple of the longest well."""
        length = longest * max(1, self.least // longest)
        return math.ceil(length / self.multiple) * self.multiple


def lay_out(samples: Sequence[Sample], shape: RowShape, pad_token_id: int) -> PackedSamples:
    """Rows of about equal length."""
    lengths = _list_lengths(samples)
    ids, types = _join_ids(samples)
    return pack_samples(ids, lengths, shape.choose(int(lengths.max())), pad_token_id, types)


def lay_out_flat(samples: Sequence[Sample], pad_token_id: int) -> PackedSamples:
    """One row, sample after sample, with a little padding behind the last."""
    lengths = _list_lengths(samples)
    ids, types = _join_ids(samples)
    num_padding = _round_up(len(ids)) - len(ids)
    numbers = np.repeat(np.arange(len(lengths)), lengths)
    positions = np.arange(len(numbers)) - np.repeat(np.cumsum(lengths) - lengths, lengths)

    def complete(values: NDArray[np.int64], filler: int) -> Tensor:
        return torch.from_numpy(np.pad(values, (0, num_padding), constant_values=filler))[None]

    document_ids = complete(numbers + 1, 0)
    segments = None if types is None else complete(types, 0)
    return PackedSamples(
        PackedBatch(complete(ids, pad_token_id), document_ids, complete(positions, 0), document_ids - 1, segments),
        places=torch.arange(len(numbers)),
        rows=torch.zeros(len(lengths), dtype=torch.long),
        documents=torch.arange(len(lengths)),
        num_documents=len(lengths),
    )


def _round_up(num_tokens: int) -> int:
    """To one of few numbers, at most a sixteenth more or a multiple of 8: oneDNN prepares its products for every number
    of rows, which takes a millisecond and half a megabyte for each."""
    step = max(_SMALLEST_STEP, (1 << num_tokens.bit_length()) // (2 * _STEPS))
    return math.ceil(num_tokens / step) * step


def lay_out_bounded(samples: Sequence[Sample], device: torch.device) -> PackedSamples:
    """The same with the documents' bounds, for attention that reads these alone.

    One array of 32 bits is sent to the device, where the rest is computed: a processor would take longer for it.
    """
    lengths = _list_lengths(samples)
    num_documents, ends = len(lengths), np.cumsum(lengths)
    ids, types = _join_ids(samples)
    num_tokens = len(ids)
    parts = [ids, *([] if types is None else [types]), np.zeros(1, np.int64), ends]
    sent = send(torch.from_numpy(np.concatenate(parts, dtype=np.int32)), device)
    *rows, starts = sent.split([num_tokens] * (len(parts) - 2) + [num_documents + 1])
    starts = starts.clone()  # kernels expect its first byte at a multiple of 16
    input_ids, *segments = (row.long()[None] for row in rows)
    begins = starts[:-1].long()
    numbers = torch.repeat_interleave(
        torch.arange(num_documents, device=device), starts.diff().long(), output_size=num_tokens
    )
    positions = torch.arange(num_tokens, device=device) - begins[numbers]
    document_ids = (numbers + 1)[None]
    bounds = DocumentBounds(starts, document_ids[0], torch.tensor(int(lengths.max()), dtype=torch.int32))
    return PackedSamples(
        FlatBatch(input_ids, document_ids, positions[None], document_ids, *segments, bounds=bounds),
        places=_NOWHERE,
        rows=_NOWHERE,
        documents=_NOWHERE,
        num_documents=num_documents,
    )


_SMALLEST_STEP = 8
_STEPS = 16
"""From each power of two to the next."""
_NOWHERE = torch.empty(0, dtype=torch.long)
"""A flat row needs no places: its tokens and documents are in the order of the samples."""


def _list_lengths(samples: Sequence[Sample]) -> NDArray[np.int64]:
    """The tokens of each document."""
    lengths = np.asarray([len(sample.ids) for sample in samples], dtype=np.int64)
    counts = [sample.num_documents for sample in samples]
    return lengths if max(counts) == 1 else np.repeat(lengths // np.asarray(counts), counts)


def _join_ids(samples: Sequence[Sample]) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
    """Ids (T,), and segments where any sample has some."""
    ids = _concatenate([sample.ids for sample in samples])
    if [sample.token_type_ids for sample in samples].count(None) == len(samples):
        return ids, None
    return ids, np.concatenate(
        [[0] * len(one.ids) if one.token_type_ids is None else one.token_type_ids for one in samples]
    )


def _concatenate(parts: Sequence[TokenIds]) -> NDArray[np.int64]:
    """Of lists without an array to each, which would take longer than all else that is laid out."""
    if not set(map(type, parts)) <= {list}:
        return np.concatenate(parts)
    return np.fromiter(chain.from_iterable(parts), dtype=np.int64, count=sum(map(len, parts)))
