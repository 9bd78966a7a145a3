"""One way to run an encoder over any number of samples: sorted by length, packed into rows, answered in input order.

T tokens of a batch, D width.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from maskwright.batch import PackedBatch
from maskwright.errors import InputWarning, RunError, check_count
from maskwright.inference.layout import RowShape, lay_out
from maskwright.inference.samples import EncodedBatch, Sample
from maskwright.models.any_encoder import encode
from maskwright.training.compute.device import evaluation_mode
from maskwright.training.micro_batches import is_out_of_memory, release_memory

FindCausal = Callable[[PackedBatch], Tensor | None]
SampleT = TypeVar("SampleT", bound=Sample)
Reduced = TypeVar("Reduced")

WINDOW_SAMPLES = 10_000
WINDOW_TOKENS = 1 << 18
"""Samples sorted together, whose results wait for each other: this bounds the memory, however long the input."""


@dataclass(frozen=True)
class BatchShape:
    tokens: int
    rows: RowShape


_CPU = BatchShape(4_096, RowShape(least=64, multiple=1))
_GPU = BatchShape(65_536, RowShape(least=256, multiple=8))
"""Attention on a GPU is quicker in rows of such a multiple, and there is room for them."""


def run_packed(
    encoder: nn.Module,
    samples: Iterable[SampleT],
    reduce: Callable[[EncodedBatch[SampleT]], Sequence[Reduced]],
    *,
    pad_token_id: int,
    batch_tokens: int | None = None,
    find_causal: FindCausal | None = None,
) -> Iterator[Reduced]:
    """What `reduce` makes of each sample's hidden states, in the order of the samples.

    `reduce` gets a batch at a time, on the encoder's device, and gives one result to each of its samples; hidden
    states are not kept. `find_causal` gives the tokens of a batch that see only what comes before them. Out of memory,
    batches are halved.
    """
    if batch_tokens is not None:
        check_count("batch_tokens", batch_tokens)
    device = next(encoder.parameters()).device
    shape = _CPU if device.type == "cpu" else _GPU

    def run_batch(batch_samples: Sequence[SampleT]) -> Sequence[Reduced]:
        batch, places = lay_out(batch_samples, shape.rows, pad_token_id)
        batch = batch.to(device, non_blocking=True)
        hidden = encode(encoder, batch, None if find_causal is None else find_causal(batch))
        lengths = torch.tensor([len(sample.ids) for sample in batch_samples], device=device)
        return reduce(EncodedBatch(batch_samples, hidden.flatten(0, 1)[places.to(device)], lengths))

    halving = _Halving(run_batch)
    for window in _cut_windows(samples):
        results: list[Any] = [None] * len(window)
        # entered for each window: a generator must not leave a mode set while its reader works
        with evaluation_mode(encoder), torch.inference_mode():
            for numbers in _sort_into_batches(window, batch_tokens or shape.tokens):
                reduced = halving([window[number] for number in numbers])
                for number, result in zip(numbers, reduced, strict=True):
                    results[number] = result
        yield from results


class _Halving(Generic[SampleT, Reduced]):
    """Runs batches; one that is too large for the memory in two halves, and so on, and later ones no larger."""

    def __init__(self, run: Callable[[Sequence[SampleT]], Sequence[Reduced]]) -> None:
        self._run = run
        self._too_many = math.inf

    def __call__(self, samples: Sequence[SampleT]) -> Sequence[Reduced]:
        num_tokens = sum(len(sample.ids) for sample in samples)
        if num_tokens < self._too_many or len(samples) == 1:
            try:
                return self._run(samples)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                problem = (str(error) or type(error).__name__).splitlines()[0]
            # Outside the handler, whose traceback would keep the failed attempt's memory.
            self._shrink(samples, num_tokens, problem)
        middle = len(samples) // 2
        return [*self(samples[:middle]), *self(samples[middle:])]

    def _shrink(self, samples: Sequence[SampleT], num_tokens: int, problem: str) -> None:
        if len(samples) == 1:
            raise RunError(
                f"out of memory with a single text of {num_tokens} tokens ({problem}); use a smaller model or a lower"
                " max_length"
            )
        release_memory()
        self._too_many = num_tokens
        warnings.warn(
            f"out of memory with {num_tokens} tokens at a time; going on with at most {num_tokens // 2} (batch_tokens"
            " sets it)",
            InputWarning,
            stacklevel=2,
        )


def _cut_windows(samples: Iterable[SampleT]) -> Iterator[list[SampleT]]:
    window: list[SampleT] = []
    num_tokens = 0
    for sample in samples:
        window.append(sample)
        num_tokens += len(sample.ids)
        if len(window) >= WINDOW_SAMPLES or num_tokens >= WINDOW_TOKENS:
            yield window
            window, num_tokens = [], 0
    if window:
        yield window


def _sort_into_batches(window: Sequence[Sample], batch_tokens: int) -> Iterator[list[int]]:
    """Numbers of samples, the longest first, so that a batch that is too large for the memory is the first."""
    batch: list[int] = []
    num_tokens = 0
    for number in sorted(range(len(window)), key=lambda number: -len(window[number].ids)):
        length = len(window[number].ids)
        if batch and num_tokens + length > batch_tokens:
            yield batch
            batch, num_tokens = [], 0
        batch.append(number)
        num_tokens += length
    if batch:
        yield batch
