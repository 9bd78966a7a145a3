"""`pipeline(kind, model)`: from texts to answers, with any model this package can read.

Kinds and options also answer to the names that the pipelines of `transformers` have for them.
"""

from __future__ import annotations

import copy
import gc
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any, Generic

import torch
from torch import nn

from maskwright.errors import InputError, InputWarning
from maskwright.inference.kinds import RECIPES, find_habit, read_options
from maskwright.inference.layout import Sample
from maskwright.inference.loading import (
    EncoderSource,
    LoadedEncoder,
    LoadedModel,
    Source,
    find_retriever,
    load_model,
)
from maskwright.inference.precision import (
    ChosenCompilation,
    ChosenPrecision,
    Compile,
    check_precision_name,
    choose_inference_precision,
    compile_layers,
    convert,
    read_compile,
)
from maskwright.inference.runner import Answer, Item, Kind, Name, Prepared, run_windows
from maskwright.inference.zero_shot import ZeroShot
from maskwright.models.any_encoder import find_hidden_size
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.training.compute.device import choose_device

_FIRST_ITEMS = 1_000
_CHUNK_ITEMS = 4_000
_CHUNK_CHARS = 1_000_000
"""Inputs tokenized at a time."""
_CHUNKS_AHEAD = 2
"""That are tokenized while one is computed: the thread is never without work."""
_ANSWERS_AT_ONCE = 256
_NOTHING = Prepared(())
_ON_THE_ENCODER = ("embed", "similarity")
_ON_A_TASK = ("ner", "qa", "classify", "zero-shot")


class Pipeline(Generic[Item, Answer]):
    """Answers in the order of the inputs, which are sorted by length and packed on the way to the encoder."""

    def __init__(
        self,
        kind: Kind[Item, Answer],
        batch_tokens: int | None = None,
        remake: Callable[[Mapping[str, Any]], Kind[Item, Answer]] | None = None,
        shape: Callable[[Any], Any] | None = None,
        lists_single: bool = False,
        precision: ChosenPrecision | None = None,
        compilation: ChosenCompilation | None = None,
    ) -> None:
        """`remake` builds the kind again with other options, `shape` is applied to every answer of a call.

        With `lists_single` the answer to a text alone is a list, unless the call says `top_k`. `precision` is
        what the model computes in, None: its own dtype, and `compilation` whether its layers are compiled.
        """
        self.kind = kind
        self.batch_tokens = batch_tokens
        self._remake = remake
        self._shape = shape
        self._lists_single = lists_single
        self.num_tokens = 0
        """That the encoder has read, special ones included, of all that was answered."""
        self.precision, self.compilation = precision, compilation

    def __call__(self, inputs: Any = None, *more: Any, **options: Any) -> Any:
        """The answer to one input, or a list of answers to several.

        Options are those of `pipeline`, for this call alone. Questions may come as `question=` and `context=`, and the
        labels of zero-shot as a second argument.
        """
        named = {name: options.pop(name) for name in self.kind.input_names if name in options}
        if more:
            options = _add_labels(self.kind, more, options)
        if options:
            return self.with_options(options)(inputs, **named)
        items, is_single = self.kind.as_items(_join_named(inputs, named, self.kind))
        with pausing_gc():
            answers = [
                answer if answer is None or self._shape is None else self._shape(answer)
                for _, answer in self.stream(items, must_answer=is_single)
            ]
        if num_gaps := sum(answer is None for answer in answers):
            warnings.warn(f"{describe_gaps(self.kind, num_gaps, len(answers))} None", InputWarning, stacklevel=2)
        if not is_single or (self._lists_single and isinstance(inputs, str)):
            return answers
        return answers[0]

    def with_options(self, options: Mapping[str, Any]) -> Pipeline[Item, Answer]:
        """The same with other options, around the same model."""
        if self._remake is None:
            raise InputError(
                f"the pipeline was built by hand and takes no options; give it without {', '.join(options)}"
            )
        lists_single = self._lists_single and "top_k" not in options
        kind, chosen = self._remake(options), (self.precision, self.compilation)
        return Pipeline(kind, self.batch_tokens, None, self._shape, lists_single, *chosen)

    def stream(
        self, items: Iterable[Item], *, must_answer: bool = False, num_before: int = 0
    ) -> Iterator[tuple[Item, Answer | None]]:
        """Inputs with their answers, one after another; memory does not grow with their number.

        An input without text, or without a mask to fill, has the answer None, or is refused if it `must_answer`.
        Errors number the inputs, `num_before` of which came in other calls.
        """
        waiting: deque[tuple[Item, Prepared]] = deque()
        kind = self.kind
        windows = run_windows(
            kind.encoder,
            chain.from_iterable(self._samples(items, waiting, must_answer, num_before)),
            kind.reduce,
            pad_token_id=kind.pad_token_id,
            model=kind.module,
            batch_tokens=self.batch_tokens,
            find_causal=kind.find_causal,
        )
        results: deque[Any] = deque()
        while True:
            with pausing_gc():
                window = next(windows, None)
            if window is None:
                break
            results.extend(window)
            while done := _take_done(waiting, results):
                asked = [(prepared, reduced) for _, prepared, reduced in done if reduced]
                self.num_tokens += sum([len(sample.ids) for prepared, _ in asked for sample in prepared.samples])
                with pausing_gc():
                    answers = iter(kind.answer_all(asked))
                for item, _, reduced in done:
                    yield item, next(answers) if reduced else None
        yield from ((item, None) for item, _ in waiting)

    def records(self, items: Iterable[Item]) -> Iterator[dict[str, Any]]:
        """Inputs and answers as the lines of a file."""
        return (self.kind.record(item, answer) for item, answer in self.stream(items))

    def _samples(
        self, items: Iterable[Item], waiting: deque[tuple[Item, Prepared]], must_answer: bool, num_before: int
    ) -> Iterator[list[Sample]]:
        """Those of a chunk at a time."""
        for chunk, tokenized in self._tokenize(_cut_chunks(items, must_answer)):
            name = self._name(num_before + chunk.num_before, chunk.places)
            found = self.kind.prepare(chunk.asked, name, tokenized) if chunk.places else ()
            if must_answer and (unanswered := next((one for one in found if not one.samples), None)):
                raise InputError(unanswered.problem)
            prepared: Sequence[Prepared] = found
            if len(found) < len(chunk.items):
                spread = dict(zip(chunk.places, found, strict=True))
                prepared = [spread.get(place, _NOTHING) for place in range(len(chunk.items))]
            waiting.extend(zip(chunk.items, prepared, strict=True))
            yield [sample for one in found for sample in one.samples]

    def _tokenize(self, chunks: Iterator[_Chunk]) -> Iterator[tuple[_Chunk, Any]]:
        """For a GPU each chunk's texts in a thread, while those before are prepared and computed.

        It is the library's work alone, which hardly takes Python's lock: launching would wait for that again and again.
        """
        if next(self.kind.encoder.parameters()).device.type != "cuda":
            yield from ((chunk, None) for chunk in chunks)
            return
        begun: deque[tuple[_Chunk, Future[Any]]] = deque()
        with ThreadPoolExecutor(1) as thread:
            for chunk in chunks:
                begun.append((chunk, thread.submit(self.kind.tokenize, chunk.asked)))
                if len(begun) > _CHUNKS_AHEAD:
                    before, tokenized = begun.popleft()
                    yield before, tokenized.result()
            for before, tokenized in begun:
                yield before, tokenized.result()

    def _name(self, num_before: int, places: Sequence[int]) -> Name:
        return lambda number: f"{self.kind.item_name} {num_before + places[number] + 1:,}"


@contextmanager
def pausing_gc() -> Iterator[None]:
    """What is made for thousands of texts is no garbage; to look through it again and again would take a third of the
    time that Python takes."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _take_done(
    waiting: deque[tuple[Item, Prepared]], results: deque[Any]
) -> list[tuple[Item, Prepared, Sequence[Any]]]:
    """Some of the inputs in front with the results of all their samples; without results where they have no samples."""
    done: list[tuple[Item, Prepared, Sequence[Any]]] = []
    while results and len(done) < _ANSWERS_AT_ONCE:
        item, prepared = waiting[0]
        num_samples = len(prepared.samples)
        if num_samples == 1:  # nearly all: said in the fewest words
            waiting.popleft()
            done.append((item, prepared, (results.popleft(),)))
            continue
        if num_samples > len(results):
            break
        waiting.popleft()
        done.append((item, prepared, [results.popleft() for _ in prepared.samples]))
    return done


@dataclass(frozen=True)
class _Chunk:
    """Inputs that are tokenized together."""

    num_before: int
    items: list[Any]
    places: Sequence[int]
    """Of those that are asked of the kind: the others have no text."""
    asked: list[Any]


def _cut_chunks(items: Iterable[Any], must_answer: bool) -> Iterator[_Chunk]:
    """Few at first, so that computing begins soon; as many as fit the memory later."""
    unread, num_before = iter(items), 0
    while chunk := _take_chunk(unread, min(max(_FIRST_ITEMS, num_before), _CHUNK_ITEMS)):
        places = _find_text(chunk) if not must_answer else range(len(chunk))
        asked = chunk if len(places) == len(chunk) else [chunk[place] for place in places]
        yield _Chunk(num_before, chunk, places, asked)
        num_before += len(chunk)


def _take_chunk(unread: Iterator[Any], most: int) -> list[Any]:
    chunk: list[Any] = []
    num_chars = 0
    for item in islice(unread, most):
        chunk.append(item)
        num_chars += len(item) if type(item) is str else _count_chars(item)
        if num_chars >= _CHUNK_CHARS:
            break
    return chunk


def _find_text(chunk: list[Any]) -> Sequence[int]:
    """The places of inputs with text, which nearly all have."""
    if set(map(type, chunk)) == {str} and all(map(str.strip, chunk)):
        return range(len(chunk))
    return [place for place, item in enumerate(chunk) if has_text(item)]


def has_text(item: Any) -> bool:
    """Whether there is something in an input, and in both texts of a pair."""
    return bool(item.strip()) if isinstance(item, str) else all(text.strip() for text in item)


def describe_gaps(kind: Kind[Any, Any], num_gaps: int, num_inputs: int) -> str:
    return f"{num_gaps:,} of {num_inputs:,} {kind.item_name}s have {kind.lacking}; their answer is"


def _count_chars(item: Any) -> int:
    return len(item) if isinstance(item, str) else sum(map(len, item))


def _join_named(inputs: Any, named: Mapping[str, Any], kind: Kind[Any, Any]) -> Any:
    """What a call asks about, given as it is or by names: one text to each name, or as many to each."""
    names = kind.input_names
    expected = " and ".join(f"{name}=" for name in names) or "a text, or a list of texts"
    if inputs is not None and named:
        raise InputError(f"inputs and {', '.join(named)} are given; expected one of the two")
    if inputs is not None:
        return inputs
    if len(named) < max(len(names), 1):
        found = f"{', '.join(named)} alone" if named else "no input"
        raise InputError(f"the call has {found}; expected {expected}")
    if all(isinstance(column, str) for column in named.values()):
        return named
    columns = [[column] if isinstance(column, str) else list(column) for column in named.values()]
    longest = max(map(len, columns))
    columns = [column * longest if len(column) == 1 else column for column in columns]
    if any(len(column) != longest for column in columns):
        raise InputError(f"{' and '.join(named)} are lists of different lengths; give as many of each")
    return [dict(zip(named, row, strict=True)) for row in zip(*columns, strict=True)]


def _add_labels(kind: Kind[Any, Any], more: Sequence[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(kind, ZeroShot) or len(more) > 1:
        raise InputError(
            f"a pipeline takes one text or one list of texts; {len(more) + 1} arguments are given: make a list"
        )
    return {**options, "labels": more[0]}


def pipeline(
    kind: str | None = None,
    model: EncoderSource | None = None,
    tokenizer: Any = None,
    *,
    device: str | int | torch.device | None = None,
    batch_tokens: int | None = None,
    precision: str | None = None,
    compile: Compile | None = None,
    **options: Any,
) -> Pipeline[Any, Any]:
    """A pipeline of a kind (`fill-mask`, `embed`, `similarity`, `classify`, `ner`, `zero-shot`, `qa`) around a model.

    The model is a run, a checkpoint, a model folder or a hub id, or a model with its `tokenizer`. A named model goes to
    a GPU if there is one, another stays where it is, unless `device` says otherwise. `batch_tokens` are read at a time.
    `precision` is fp32, bf16, fp16 (GPUs), fp8 (newer GPUs), int8 (CPUs) or auto, which is for a named model: bf16
    where that is clearly faster than fp32. `compile` is True, False or auto: layers are compiled, on a GPU in 16 bits,
    when many tokens have been read. A model in memory stays as it is, or is copied where one of the two is given.
    Options: `top_k` (fill-mask, classify, qa), `targets` (fill-mask); `pooling` (embed, similarity), `normalize`
    and `role` (embed; `query` or `document`, which some retrievers have a prompt for); `aggregation` (ner); `labels`,
    `hypothesis`, `multi_label` (zero-shot); `max_answer_length`, `max_question_length`, `doc_stride`,
    `handle_impossible_answer` (qa); `max_length`. They may be given here or to a call.

    Names of `transformers` do as well, with their defaults and the shape of their answers: `text-classification`,
    `sentiment-analysis`, `token-classification`, `question-answering`, `zero-shot-classification`,
    `feature-extraction`; `aggregation_strategy`, `candidate_labels`, `hypothesis_template`, `max_seq_len` and others.
    """
    name = options.pop("task", None) if kind is None else kind
    if name is None or model is None:
        raise InputError("a pipeline needs a kind and a model, such as pipeline('fill-mask', 'runs/quickstart')")
    habit = find_habit(name)
    recipe = RECIPES[habit.kind]
    options = {**habit.defaults, **read_options(options, name, recipe)}
    if precision is not None:
        check_precision_name(precision)
    read_compile(compile)
    if (precision is not None or compile is not None) and isinstance(model, nn.Module):
        model = copy.deepcopy(model)
    loaded = recipe.load(model, tokenizer)
    make = partial(recipe.make, *loaded)
    built = make(**options)
    if device is not None or not isinstance(model, nn.Module | LoadedEncoder):
        built.module.to(choose_device(_name_device(device), "device"))
    chosen = compilation = None
    is_named = not isinstance(model, nn.Module | LoadedEncoder)
    if precision is not None or is_named:
        used = next(built.module.parameters()).device
        chosen = choose_inference_precision(precision or "auto", used, find_hidden_size(built.encoder))
        convert(built.module, built.encoder, chosen.name)

    if chosen is not None or compile is not None:
        compilation = compile_layers(built.encoder, compile, "" if chosen is None else chosen.name)

    def remake(more: Mapping[str, Any]) -> Kind[Any, Any]:
        return make(**{**options, **read_options(more, name, recipe)})

    return Pipeline(built, batch_tokens, remake, habit.shape, habit.lists_single, chosen, compilation)


def _name_device(device: str | int | torch.device | None) -> str:
    """As `transformers` numbers them: -1 is the CPU, 0 the first GPU."""
    if isinstance(device, int):
        return "cpu" if device < 0 else f"cuda:{device}"
    return "auto" if device is None else str(device)


@dataclass(frozen=True)
class EveryKind:
    loaded: LoadedModel
    pipelines: Mapping[str, Pipeline[Any, Any]]
    """By kind; what the model was made for comes first."""
    precision: ChosenPrecision | None = None
    """None: the dtype that a given model has."""


def build_pipelines(
    model: Source,
    tokenizer: Any = None,
    device: str | None = None,
    precision: str | None = None,
    compile: Compile | None = None,
) -> EveryKind:
    """A run, a checkpoint, a model folder or a hub id, or a model with its `tokenizer`, read once.

    It goes to a GPU if there is one, unless `device` says otherwise. `precision` and `compile` are those of `pipeline`:
    without them a model that was read has `auto`, and a given one stays as it is.
    """
    loaded = load_model(model, tokenizer)
    chosen_device = choose_device(device or "auto", "device")
    loaded.module.to(chosen_device).eval()
    chosen = None
    if precision is not None or not isinstance(model, nn.Module):
        width = find_hidden_size(loaded.encoder.encoder)
        chosen = choose_inference_precision(precision or "auto", chosen_device, width)
        convert(loaded.module, loaded.encoder.encoder, chosen.name)
    if chosen is not None or compile is not None:
        compile_layers(loaded.encoder.encoder, compile, "" if chosen is None else chosen.name)
    found: dict[str, Pipeline[Any, Any]] = {}
    if loaded.whole is not None and find_retriever(loaded.whole) is not None:
        return EveryKind(loaded, {"embed": pipeline("embed", loaded.whole, loaded.tokenizer)}, chosen)
    if isinstance(loaded.whole, MaskedLanguageModel):
        found["fill-mask"] = pipeline("fill-mask", loaded.whole, loaded.tokenizer)
    elif loaded.whole is not None:
        for kind in _ON_A_TASK:
            options = {"labels": None} if kind == "zero-shot" else {}
            try:
                found[kind] = pipeline(kind, loaded.whole, loaded.tokenizer, **options)
            except InputError:  # which says that the model is for something else
                continue
    for kind in _ON_THE_ENCODER:
        found[kind] = pipeline(kind, loaded.encoder)
    return EveryKind(loaded, found, chosen)
