"""One way to run an encoder over any number of samples: sorted by length, packed into rows, answered in input order.

On a CPU all samples of a batch are one row, of which attention computes each by itself: there a sample's states do not
depend on its batch. A kind of prediction says what its samples are and what it needs of their hidden states.
B rows, S row length, N samples, T tokens of all of them, D width, C outputs.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from maskwright.batch import PackedBatch
from maskwright.data.assembly import PackedSamples
from maskwright.errors import InputWarning, RunError, check_count, describe_briefly, is_out_of_memory
from maskwright.inference.layout import (
    EncodedBatch,
    Reduction,
    RowShape,
    Sample,
    copy_alone,
    lay_out,
    lay_out_bounded,
    lay_out_flat,
    send_samples,
)
from maskwright.models.any_encoder import encode, has_flat_rows
from maskwright.tasks.model import TaskModel
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.training.compute.device import evaluation_mode
from maskwright.training.micro_batches import release_memory

SampleT = TypeVar("SampleT", bound=Sample)
Item = TypeVar("Item")
Answer = TypeVar("Answer")
Name = Callable[[int], str]
"""How an error calls the item of a number."""
FindCausal = Callable[[PackedBatch], Tensor | None]
WINDOW_SAMPLES = 10_000
WINDOW_TOKENS = 1 << 18
"""Samples sorted together, whose results wait for each other: this bounds the memory, however long the input."""


@dataclass(slots=True)
class Prepared:
    """An input as samples: one, or the windows of what is longer than the model; none where nothing can be answered."""

    samples: Sequence[Sample]
    problem: str = field(default="", kw_only=True)
    """Why there is no sample, as an error says it."""


class Kind(ABC, Generic[Item, Answer]):
    """From inputs to samples, and from their hidden states to answers."""

    encoder: nn.Module
    tokenizer: Tokenizer
    pad_token_id: int
    item_name: ClassVar[str] = "text"
    """What errors call an input."""
    input_names: ClassVar[tuple[str, ...]] = ()
    """By which a call may give the parts of an input, where it has parts."""
    may_pair: ClassVar[bool] = False
    """Whether an input may be a pair of texts as well as one."""
    lacking: str = "no text"
    """What an input has that gets no answer."""

    @property
    def module(self) -> nn.Module:
        """All that computes: the encoder, and the head of a kind that has one."""
        return self.encoder

    @property
    @abstractmethod
    def example(self) -> dict[str, Any]:
        """What `describe_answer` gives, with everything in it: the columns of a file, also where answers are empty."""

    def tokenize(self, items: Sequence[Item]) -> Any:
        """What `prepare` takes as `tokenized`: work without Python's lock, which another thread can do ahead of it."""
        return None

    @abstractmethod
    def prepare(self, items: Sequence[Item], name: Name, tokenized: Any = None) -> Sequence[Prepared]:
        """The samples of some inputs; `name` says how an error calls the input at a place of `items`."""

    @abstractmethod
    def reduce(self, batch: EncodedBatch[Any]) -> Reduction:
        """What is needed of each sample's hidden states; hidden states are not kept."""

    @abstractmethod
    def answer(self, prepared: Any, reduced: Sequence[Any]) -> Answer:
        """The answer to an input, from what `reduce` gave to each of its samples."""

    def answer_all(self, asked: Sequence[tuple[Any, Sequence[Any]]]) -> Sequence[Answer]:
        """The answers to some inputs, given as those of `answer`."""
        return [self.answer(prepared, reduced) for prepared, reduced in asked]

    @abstractmethod
    def describe_answer(self, answer: Answer) -> dict[str, Any]:
        """An answer as columns of a file."""

    def describe_input(self, item: Any) -> dict[str, Any]:
        """An input as columns of a file; texts that are not there are None."""
        return {"text": item}

    def record(self, item: Any, answer: Answer | None) -> dict[str, Any]:
        """An input and its answer as one line of a file: the same shape for every input."""
        answered = dict.fromkeys(self.example) if answer is None else self.describe_answer(answer)
        return {**self.describe_input(item), **answered}

    @abstractmethod
    def as_items(self, inputs: Any) -> tuple[list[Item], bool]:
        """What a caller gave as a list, and whether it was a single input; anything else is an `InputError`."""

    def find_causal(self, batch: PackedBatch) -> Tensor | None:
        """(B, S) true for tokens that see only what comes before them; None when all see both sides."""
        return None


class TaskKind(Kind[Item, Answer]):
    """What models of a task answer, by their own head."""

    def __init__(self, model: TaskModel, tokenizer: Tokenizer) -> None:
        self.model = model
        self.encoder = model.encoder
        self.tokenizer = tokenizer
        self.pad_token_id = tokenizer.pad_token_id

    @property
    def module(self) -> TaskModel:
        return self.model

    def compute_logits(self, batch: EncodedBatch[Any]) -> Tensor:
        """(N, C) of the samples, or of a head for tokens (T, C), in fp32."""
        task_head = self.model.task_head
        dtype = next((weight.dtype for weight in task_head.parameters()), batch.states.dtype)
        logits = task_head(batch.states.to(dtype), batch.batch, batch.packed.num_documents).float()
        return batch.list_tokens(logits) if task_head.is_per_token else batch.list_samples(logits)


_CPU_TOKENS = 2_048
"""What layers compute of so many tokens stays in a processor's caches."""
_GPU_TOKENS = 65_536
_FLAT_TOKENS = 32_768
"""Enough for the products to be fast, and few enough for a job of some thousand sentences to have several batches,
which are prepared, computed and read at the same time."""
_LATER_FLAT_TOKENS = 65_536
"""Of a longer job, in which launching a batch then takes half the time for each of its texts."""
_NUM_EARLY = 3
_GPU_ROWS = RowShape(least=256, multiple=8)
"""Attention on a GPU is quicker in rows of such a multiple, and there is room for them."""
_FLAT_AHEAD = 2
"""Batches that the device has still to compute while the results of another are read, and the next is prepared. A
thread for that would wait for Python's lock as often as it had it."""


def run_windows(
    encoder: nn.Module,
    samples: Iterable[SampleT],
    reduce: Callable[[EncodedBatch[SampleT]], Reduction],
    *,
    pad_token_id: int,
    model: nn.Module | None = None,
    batch_tokens: int | None = None,
    row_shape: RowShape | None = None,
    find_causal: FindCausal | None = None,
) -> Iterator[list[Any]]:
    """What `reduce` makes of each sample's hidden states, in the order of the samples, some at a time.

    `reduce` gets a batch at a time, on the encoder's device, and gives one result to each of its samples; hidden
    states are not kept. `model` is the encoder with the heads that `reduce` calls, if there are any. `row_shape` is for
    GPUs. `find_causal` gives the tokens of a batch that see only what comes before them. Out of memory, batches are
    halved.

    On a GPU nothing waits for the device but the reading of results, behind the batch that is computed.
    """
    if batch_tokens is not None:
        check_count("batch_tokens", batch_tokens)
    device = next(encoder.parameters()).device
    is_cpu = device.type == "cpu"
    is_flat = takes_flat_rows(encoder, find_causal)
    most_tokens = batch_tokens or (_CPU_TOKENS if is_cpu else _FLAT_TOKENS if is_flat else _GPU_TOKENS)

    def lay_out_all(batch_samples: Sequence[SampleT]) -> PackedSamples:
        if is_flat:
            return lay_out_bounded(batch_samples, device)
        if is_cpu:
            return lay_out_flat(batch_samples, pad_token_id)
        return send_samples(lay_out(batch_samples, row_shape or _GPU_ROWS, pad_token_id), device)

    def run_batch(batch_samples: Sequence[SampleT]) -> _Pending:
        packed = lay_out_all(batch_samples)
        is_causal = None if find_causal is None or is_flat else find_causal(packed.batch)
        return _Pending(reduce(EncodedBatch(batch_samples, packed, encode(encoder, packed.batch, is_causal))), device)

    later_tokens = most_tokens if batch_tokens else _LATER_FLAT_TOKENS
    windows = _cut_windows(samples, most_tokens, later_tokens) if is_flat else _cut_windows(samples, WINDOW_TOKENS)
    num_ahead = 0 if is_cpu else _FLAT_AHEAD if is_flat else 1
    halving = _Halving(run_batch)
    launched: deque[_Launched] = deque()
    for window in windows:
        # entered for each window: a generator must not leave a mode set while its reader works
        with evaluation_mode(model or encoder), torch.inference_mode():
            launched.append(_launch(window, most_tokens, halving, is_sorted=not is_flat))
        if len(launched) > num_ahead:
            yield launched.popleft().read()
    while launched:
        yield launched.popleft().read()


def run_packed(
    encoder: nn.Module,
    samples: Iterable[SampleT],
    reduce: Callable[[EncodedBatch[SampleT]], Reduction],
    **settings: Any,
) -> Iterator[Any]:
    """`run_windows`, one result after another."""
    return chain.from_iterable(run_windows(encoder, samples, reduce, **settings))


def takes_flat_rows(encoder: nn.Module, find_causal: FindCausal | None = None) -> bool:
    """Whether batches are flat rows with bounds: on a GPU in 16 bits, where all tokens see both sides."""
    if not has_flat_rows(encoder):
        return False
    token = torch.zeros(1, 1, dtype=torch.long)
    return find_causal is None or find_causal(PackedBatch(token, token + 1, token, token)) is None


class _Pending:
    """The results of a batch on their way from the device."""

    def __init__(self, reduction: Reduction, device: torch.device) -> None:
        self._split, self._tensors = reduction.split, reduction.tensors
        self._is_there: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._tensors = tuple(
                torch.empty(one.shape, dtype=one.dtype, pin_memory=True).copy_(one, non_blocking=True)
                for one in reduction.tensors
            )
            self._is_there = torch.cuda.Event()
            self._is_there.record(torch.cuda.current_stream(device))

    def read(self) -> Sequence[Any]:
        if self._is_there is None:
            return self._split(*(one.cpu() for one in self._tensors))
        self._is_there.synchronize()
        return self._split(*map(copy_alone, self._tensors))  # pinned memory is scarce and used again


@dataclass(frozen=True)
class _Launched:
    """The samples of a window as batches."""

    num_samples: int
    batches: Sequence[tuple[Sequence[int], Sequence[_Pending]]]
    """Numbers of samples, with the results of one batch or, after halving, of several."""

    def read(self) -> list[Any]:
        results: list[Any] = [None] * self.num_samples
        for numbers, pending in self.batches:
            for number, result in zip(numbers, chain.from_iterable(one.read() for one in pending), strict=True):
                results[number] = result
        return results


def _launch(window: Sequence[SampleT], most_tokens: int, halving: _Halving[SampleT], *, is_sorted: bool) -> _Launched:
    if not is_sorted:
        return _Launched(len(window), [(range(len(window)), halving(window))])
    batches = _sort_into_batches(window, most_tokens)
    return _Launched(len(window), [(numbers, halving([window[number] for number in numbers])) for numbers in batches])


class _Halving(Generic[SampleT]):
    """Runs batches; one that is too large for the memory in two halves, and so on, and later ones no larger."""

    def __init__(self, run: Callable[[Sequence[SampleT]], _Pending]) -> None:
        self._run = run
        self._too_many = math.inf

    def __call__(self, samples: Sequence[SampleT]) -> list[_Pending]:
        num_tokens = sum(len(sample.ids) for sample in samples)
        if num_tokens < self._too_many or len(samples) == 1:
            try:
                return [self._run(samples)]
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                problem = describe_briefly(error)
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


def _cut_windows(
    samples: Iterable[SampleT], most_tokens: int, later_tokens: int | None = None
) -> Iterator[list[SampleT]]:
    """Each ends where one as long as its longest would not fit; `later_tokens` is for all but the first few."""
    window: list[SampleT] = []
    num_tokens = longest = num_windows = 0
    for sample in samples:
        length = len(sample.ids)
        window.append(sample)
        num_tokens += length
        if length > longest:
            longest = length
        if num_tokens + longest > most_tokens or len(window) >= WINDOW_SAMPLES:
            yield window
            window, num_tokens, longest, num_windows = [], 0, 0, num_windows + 1
            if num_windows == _NUM_EARLY:
                most_tokens = later_tokens or most_tokens
    if window:
        yield window


def _sort_into_batches(window: Sequence[Sample], batch_tokens: int) -> Iterator[list[int]]:
    """Numbers of samples, the longest first, so that a batch that is too large for the memory is the first."""
    batch: list[int] = []
    num_tokens = 0
    for number in sorted(range(len(window)), key=lambda number: -window[number].document_length):
        length = len(window[number].ids)
        if batch and num_tokens + length > batch_tokens:
            yield batch
            batch, num_tokens = [], 0
        batch.append(number)
        num_tokens += length
    if batch:
        yield batch
