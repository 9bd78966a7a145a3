"""An encoder's passes over short texts as CUDA graphs, which a GPU replays without waiting for Python.

A graph is for one number of tokens. A flat row is filled up to the next such number with documents that nobody reads.
N documents of a row, T tokens, D width.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from maskwright.batch import DocumentBounds, FlatBatch
from maskwright.errors import InputWarning, describe_briefly
from maskwright.models.documents import are_short

Read = Callable[[FlatBatch], Tensor]
Key = tuple[Any, ...]
_NUM_BEFORE = 2
"""Passes of a size that are not recorded: recording takes as long as some passes."""
_MOST_GRAPHS = 16
_MOST_TOKENS = 65_536
"""Of more, the device computes longer than Python takes to launch it."""
_SMALLEST_SIZE = 64
_STEPS = 8
"""Sizes from each power of two to the next."""
_FILLING_LENGTH = 64
"""Tokens of a document that fills a row up: attention to a long one would take its time."""
_OUR_PARTS = ("maskwright.", "torch.")


class Slots:
    """The inputs of a graph: a flat row whose tensors keep their places in memory."""

    def __init__(self, size: int, like: FlatBatch) -> None:
        device = like.input_ids.device
        self._size = size
        self._most_documents = count_documents(size)
        ids, positions, numbers = (torch.zeros(1, size, dtype=torch.long, device=device) for _ in range(3))
        types = None if like.token_type_ids is None else torch.zeros_like(ids)
        starts = torch.zeros(self._most_documents + 1, dtype=torch.int32, device=device)
        bounds = DocumentBounds(starts, numbers[0], like.bounds.longest)
        self.batch = FlatBatch(ids, numbers, positions, numbers, types, bounds=bounds)
        self._fillings = torch.arange(size, device=device) // _FILLING_LENGTH
        self._ends = torch.arange(1, self._most_documents + 1, dtype=torch.int32, device=device) * _FILLING_LENGTH

    def fill(self, batch: FlatBatch) -> None:
        num_tokens, num_documents = _count(batch)
        own, given = _list_rows(self.batch), _list_rows(batch)
        torch._foreach_copy_([row[:, :num_tokens] for row in own], given)
        starts, numbers = self.batch.bounds.starts, self.batch.bounds.numbers
        starts[: num_documents + 1].copy_(batch.bounds.starts)
        fillings, ends = self._fillings[: self._size - num_tokens], self._ends[: self._most_documents - num_documents]
        torch.add(fillings, num_documents + 1, out=numbers[num_tokens:])
        torch.clamp(ends + num_tokens, max=self._size, out=starts[num_documents + 1 :])


def count_documents(size: int) -> int:
    """The most that a row of a graph has, those that fill it up included: a text has two tokens at least."""
    return size // 2 + 1


def choose_size(num_tokens: int) -> int:
    """The number of tokens that a row is filled up to: one of few, at most an eighth more."""
    step = max(_SMALLEST_SIZE, (1 << (num_tokens - 1).bit_length()) // (2 * _STEPS))
    return -(-num_tokens // step) * step


@dataclass(frozen=True)
class _Recording:
    graph: torch.cuda.CUDAGraph
    slots: Slots
    states: Tensor
    """(1, size, D)"""


class InferenceRecorder:
    """Records passes over rows of short texts, from the third of each size on; all else runs as it is.

    Weights may change in place. Where they are moved, or cast, passes are recorded anew.
    """

    def __init__(self) -> None:
        self._recordings: dict[Key, _Recording] = {}
        self._num_seen: Counter[Key] = Counter()
        self._weights: list[Tensor] = []
        self._places: tuple[int, ...] = ()
        self._pool: Any = None
        self._is_meant = True
        self._lock = Lock()
        """Threads may share a model, and so the tensors of a graph."""

    def __reduce__(self) -> tuple[Any, ...]:
        """A copied model starts with a new recorder: graphs hold the addresses of weights."""
        return type(self), ()

    @property
    def num_recordings(self) -> int:
        return len(self._recordings)

    def run(self, encoder: nn.Module, batch: FlatBatch, half_window: int | None, read: Read) -> Tensor:
        """Hidden states (1, T, D): what `read` gives, who runs the encoder as it is."""
        if not self._is_meant or not _is_recordable(batch, half_window):
            return read(batch)
        num_tokens, _ = _count(batch)
        size = choose_size(num_tokens)
        stream = torch.cuda.current_stream(batch.input_ids.device).cuda_stream
        key = size, batch.token_type_ids is None, stream
        with self._lock:
            self._follow_weights(encoder)
            if key not in self._recordings and self._is_wanted(key) and self._can_record(encoder):
                self._try_to_record(key, Slots(size, batch), batch, read)
            if key in self._recordings:
                recording = self._recordings[key]
                recording.slots.fill(batch)
                recording.graph.replay()
                return recording.states[:, :num_tokens].clone()
        return read(batch)

    def _is_wanted(self, key: Key) -> bool:
        self._num_seen[key] += 1
        return self._num_seen[key] > _NUM_BEFORE and len(self._recordings) < _MOST_GRAPHS

    def _follow_weights(self, encoder: nn.Module) -> None:
        """Forget graphs that would read weights where they no longer are."""
        if self._weights and self._places != _locate(self._weights):
            self._forget()
        if not self._weights:
            self._weights = list(chain(encoder.parameters(), encoder.buffers()))
            self._places = _locate(self._weights)

    def _forget(self) -> None:
        self._recordings.clear()
        self._num_seen.clear()
        self._weights, self._places, self._pool = [], (), None

    def _can_record(self, encoder: nn.Module) -> bool:
        """Whether a graph would do what the encoder does: its parts are those it was built from, and nobody watches."""
        parts = list(encoder.modules())
        is_ours = all(type(part).__module__.startswith(_OUR_PARTS) for part in parts)
        is_watched = any(part._forward_hooks or part._forward_pre_hooks for part in parts)
        self._is_meant = is_ours and not is_watched
        return self._is_meant

    def _try_to_record(self, key: Key, slots: Slots, batch: FlatBatch, read: Read) -> None:
        try:
            slots.fill(batch)
            self._recordings[key] = self._record(slots, read)
        except RuntimeError as error:
            problem = describe_briefly(error)
        else:
            return
        self._forget()
        self._is_meant = False
        torch.cuda.empty_cache()
        warnings.warn(
            f"passes over short texts cannot be recorded ({problem}); going on without, which is slower",
            InputWarning,
            stacklevel=2,
        )

    def _record(self, slots: Slots, read: Read) -> _Recording:
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        current, aside = torch.cuda.current_stream(), torch.cuda.Stream()
        aside.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(aside):
            read(slots.batch)  # what is made once, kernels among it, is made before
            # Other threads go on meanwhile, and may ask the device for memory.
            graph.capture_begin(self._pool, capture_error_mode="thread_local")
            try:
                states = read(slots.batch)
            finally:
                graph.capture_end()
        current.wait_stream(aside)
        return _Recording(graph, slots, states)


def _is_recordable(batch: FlatBatch, half_window: int | None) -> bool:
    num_tokens, num_documents = _count(batch)
    size = choose_size(num_tokens)
    num_fillings = -(-(size - num_tokens) // _FILLING_LENGTH)
    return (
        num_tokens <= _MOST_TOKENS
        and num_documents + num_fillings <= count_documents(size)
        and torch.is_inference_mode_enabled()
        and not torch.is_autocast_enabled(batch.input_ids.device.type)
        and are_short(batch.bounds, half_window)
        and not torch.cuda.is_current_stream_capturing()
    )


def _count(batch: FlatBatch) -> tuple[int, int]:
    """Its tokens, and its documents."""
    return batch.input_ids.shape[1], len(batch.bounds.starts) - 1


def _list_rows(batch: FlatBatch) -> list[Tensor]:
    """Those that an encoder reads, (1, T) each."""
    types = [] if batch.token_type_ids is None else [batch.token_type_ids]
    return [batch.input_ids, batch.positions, batch.bounds.numbers[None], *types]


def _locate(weights: list[Tensor]) -> tuple[int, ...]:
    return tuple(weight.data_ptr() for weight in weights)
