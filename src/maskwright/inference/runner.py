"""One way to run an encoder over any number of samples: sorted by length, packed into rows, answered in input order.

On a CPU all samples of a batch are one row, of which attention computes each by itself: there a sample's states do not
depend on its batch. A kind of prediction says what its samples are and what it needs of their hidden states.
B rows, S row length, N samples, T tokens of all of them, D width, C outputs.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from maskwright.batch import PackedBatch
from maskwright.data.assembly import PackedSamples, pack_samples
from maskwright.errors import InputWarning, RunError, check_count, describe_briefly, is_out_of_memory
from maskwright.models.any_encoder import encode
from maskwright.tasks.model import TaskModel
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.training.compute.device import evaluation_mode
from maskwright.training.micro_batches import release_memory

SampleT = TypeVar("SampleT", bound="Sample")
SampleT_co = TypeVar("SampleT_co", bound="Sample", covariant=True)
Item = TypeVar("Item")
Answer = TypeVar("Answer")
Name = Callable[[int], str]
"""How an error calls the item of a number."""
TokenIds = Sequence[int] | NDArray[np.int64]
FindCausal = Callable[[PackedBatch], Tensor | None]
Reduced = TypeVar("Reduced")
WINDOW_SAMPLES = 10_000
WINDOW_TOKENS = 1 << 18
"""Samples sorted together, whose results wait for each other: this bounds the memory, however long the input."""


@dataclass(frozen=True)
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
        return values.flatten(0, 1)[self.packed.places.to(values.device)]

    def list_samples(self, values: Tensor) -> Tensor:
        """(N, ...) of values (B, documents of a row, ...): that of each sample."""
        return values[self.packed.rows.to(values.device), self.packed.documents.to(values.device)]

    def take(self, places: Sequence[TokenIds]) -> Tensor:
        """Hidden states at some places of each sample, counted in its ids, one sample after another."""
        firsts = np.cumsum(self.lengths) - self.lengths
        chosen = np.concatenate([first + np.asarray(one) for first, one in zip(firsts, places, strict=True)])
        flat = self.packed.places[torch.from_numpy(chosen)]
        return self.states.flatten(0, 1)[flat.to(self.states.device)]

    def split(self) -> list[Tensor]:
        """The hidden states of each sample."""
        return list(torch.split(self.hidden, self.lengths))


@dataclass(frozen=True)
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

    @abstractmethod
    def prepare(self, items: Sequence[Item], name: Name) -> Sequence[Prepared]:
        """The samples of some inputs; `name` says how an error calls the input at a place of `items`."""

    @abstractmethod
    def reduce(self, batch: EncodedBatch[Any]) -> Sequence[Any]:
        """What is needed of each sample's hidden states, off the device; hidden states are not kept."""

    @abstractmethod
    def answer(self, prepared: Any, reduced: Sequence[Any]) -> Answer:
        """The answer to an input, from what `reduce` gave to each of its samples."""

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


def lay_out_flat(samples: Sequence[Sample]) -> PackedSamples:
    """One row, sample after sample, without padding."""
    lengths = _list_lengths(samples)
    ids, types = (None if part is None else torch.from_numpy(part)[None] for part in _join_ids(samples))
    assert ids is not None
    numbers = np.repeat(np.arange(len(lengths)), lengths)
    positions = np.arange(len(numbers)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    document_ids = torch.from_numpy(numbers + 1)[None]
    return PackedSamples(
        PackedBatch(ids, document_ids, torch.from_numpy(positions)[None], document_ids - 1, types),
        places=torch.arange(len(numbers)),
        rows=torch.zeros(len(lengths), dtype=torch.long),
        documents=torch.arange(len(lengths)),
        num_documents=len(lengths),
    )


def _list_lengths(samples: Sequence[Sample]) -> NDArray[np.int64]:
    """The tokens of each document."""
    return np.repeat([sample.document_length for sample in samples], [sample.num_documents for sample in samples])


def _join_ids(samples: Sequence[Sample]) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
    """Ids (T,), and segments where any sample has some."""
    ids = np.concatenate([sample.ids for sample in samples])
    if all(sample.token_type_ids is None for sample in samples):
        return ids, None
    return ids, np.concatenate(
        [[0] * len(one.ids) if one.token_type_ids is None else one.token_type_ids for one in samples]
    )


_CPU_TOKENS = 2_048
"""What layers compute of so many tokens stays in a processor's caches."""
_GPU_TOKENS = 65_536
_GPU_ROWS = RowShape(least=256, multiple=8)
"""Attention on a GPU is quicker in rows of such a multiple, and there is room for them."""


def run_packed(
    encoder: nn.Module,
    samples: Iterable[SampleT],
    reduce: Callable[[EncodedBatch[SampleT]], Sequence[Reduced]],
    *,
    pad_token_id: int,
    model: nn.Module | None = None,
    batch_tokens: int | None = None,
    row_shape: RowShape | None = None,
    find_causal: FindCausal | None = None,
) -> Iterator[Reduced]:
    """What `reduce` makes of each sample's hidden states, in the order of the samples.

    `reduce` gets a batch at a time, on the encoder's device, and gives one result to each of its samples; hidden
    states are not kept. `model` is the encoder with the heads that `reduce` calls, if there are any. `row_shape` is for
    GPUs. `find_causal` gives the tokens of a batch that see only what comes before them. Out of memory, batches are
    halved.
    """
    if batch_tokens is not None:
        check_count("batch_tokens", batch_tokens)
    device = next(encoder.parameters()).device
    is_cpu = device.type == "cpu"
    most_tokens = batch_tokens or (_CPU_TOKENS if is_cpu else _GPU_TOKENS)

    def run_batch(batch_samples: Sequence[SampleT]) -> Sequence[Reduced]:
        packed = lay_out_flat(batch_samples) if is_cpu else lay_out(batch_samples, row_shape or _GPU_ROWS, pad_token_id)
        packed = replace(packed, batch=packed.batch.to(device, non_blocking=True))
        is_causal = None if find_causal is None else find_causal(packed.batch)
        return reduce(EncodedBatch(batch_samples, packed, encode(encoder, packed.batch, is_causal)))

    halving = _Halving(run_batch)
    for window in _cut_windows(samples):
        results: list[Any] = [None] * len(window)
        # entered for each window: a generator must not leave a mode set while its reader works
        with evaluation_mode(model or encoder), torch.inference_mode():
            for numbers in _sort_into_batches(window, most_tokens):
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
    for number in sorted(range(len(window)), key=lambda number: -window[number].document_length):
        length = len(window[number].ids)
        if batch and num_tokens + length > batch_tokens:
            yield batch
            batch, num_tokens = [], 0
        batch.append(number)
        num_tokens += length
    if batch:
        yield batch
