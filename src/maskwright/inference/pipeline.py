"""`pipeline(kind, model)`: from texts to answers, with any model this package can read.

Kinds and options also answer to the names that the pipelines of `transformers` have for them.
"""

from __future__ import annotations

import copy
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic

import torch
from torch import nn

from maskwright.errors import InputError, InputWarning
from maskwright.inference.classify import CLASSIFYING_TASKS, Classify
from maskwright.inference.embed import Embed, Similarity
from maskwright.inference.fill_mask import FillMask
from maskwright.inference.loading import (
    EncoderSource,
    LoadedEncoder,
    Source,
    load_language_model,
    load_task_model,
    load_text_encoder,
)
from maskwright.inference.ner import FindEntities
from maskwright.inference.precision import ChosenPrecision, check_precision_name, choose_inference_precision, convert
from maskwright.inference.qa import AnswerQuestions
from maskwright.inference.runner import Answer, Item, Kind, Name, Prepared, Sample, run_packed
from maskwright.inference.zero_shot import ZeroShot
from maskwright.suggestions import suggest
from maskwright.tasks.ner.token_classification import TokenClassification
from maskwright.tasks.qa.question_answering import QuestionAnswering
from maskwright.tasks.sequence.classification import Classification
from maskwright.tasks.task import Task
from maskwright.training.compute.device import choose_device

_CHUNK_ITEMS = 1_000
_CHUNK_CHARS = 1_000_000
"""Inputs tokenized at a time."""
_NOTHING = Prepared(())


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
    ) -> None:
        """`remake` builds the kind again with other options, `shape` is applied to every answer of a call.

        With `lists_single` the answer to a text alone is a list, unless the call says `top_k`. `precision` is
        what the model computes in; None: its own dtype.
        """
        self.kind = kind
        self.batch_tokens = batch_tokens
        self._remake = remake
        self._shape = shape
        self._lists_single = lists_single
        self.num_tokens = 0
        """That the encoder has read, special ones included, of all that was answered."""
        self.precision = precision

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
        return Pipeline(self._remake(options), self.batch_tokens, None, self._shape, lists_single, self.precision)

    def stream(
        self, items: Iterable[Item], *, must_answer: bool = False, num_before: int = 0
    ) -> Iterator[tuple[Item, Answer | None]]:
        """Inputs with their answers, one after another; memory does not grow with their number.

        An input without text, or without a mask to fill, has the answer None, or is refused if it `must_answer`.
        Errors number the inputs, `num_before` of which came in other calls.
        """
        waiting: deque[tuple[Item, Prepared]] = deque()
        kind = self.kind
        results = run_packed(
            kind.encoder,
            self._samples(items, waiting, must_answer, num_before),
            kind.reduce,
            pad_token_id=kind.pad_token_id,
            model=kind.module,
            batch_tokens=self.batch_tokens,
            find_causal=kind.find_causal,
        )
        reduced: list[Any] = []
        for result in results:
            reduced.append(result)
            while not waiting[0][1].samples:
                yield waiting.popleft()[0], None
            item, prepared = waiting[0]
            if len(reduced) == len(prepared.samples):
                waiting.popleft()
                self.num_tokens += sum(len(sample.ids) for sample in prepared.samples)
                yield item, kind.answer(prepared, reduced)
                reduced = []
        yield from ((item, None) for item, _ in waiting)

    def records(self, items: Iterable[Item]) -> Iterator[dict[str, Any]]:
        """Inputs and answers as the lines of a file."""
        return (self.kind.record(item, answer) for item, answer in self.stream(items))

    def _samples(
        self, items: Iterable[Item], waiting: deque[tuple[Item, Prepared]], must_answer: bool, num_before: int
    ) -> Iterator[Sample]:
        for num_done, chunk in _cut_chunks(items):
            asked = [place for place, item in enumerate(chunk) if must_answer or has_text(item)]
            name = self._name(num_before + num_done, asked)
            found = self.kind.prepare([chunk[place] for place in asked], name) if asked else []
            prepared = dict(zip(asked, found, strict=True))
            for place, item in enumerate(chunk):
                one = prepared.get(place, _NOTHING)
                if must_answer and not one.samples:
                    raise InputError(one.problem)
                waiting.append((item, one))
                yield from one.samples

    def _name(self, num_before: int, places: Sequence[int]) -> Name:
        return lambda number: f"{self.kind.item_name} {num_before + places[number] + 1:,}"


def _cut_chunks(items: Iterable[Item]) -> Iterator[tuple[int, list[Item]]]:
    """Inputs in lists that fit the memory, each with the number of inputs before it."""
    chunk: list[Item] = []
    num_before = num_chars = 0
    for item in items:
        chunk.append(item)
        num_chars += _count_chars(item)
        if len(chunk) >= _CHUNK_ITEMS or num_chars >= _CHUNK_CHARS:
            yield num_before, chunk
            num_before, num_chars, chunk = num_before + len(chunk), 0, []
    if chunk:
        yield num_before, chunk


def has_text(item: Any) -> bool:
    """Whether there is something in an input, and in both texts of a pair."""
    return all(text.strip() for text in ([item] if isinstance(item, str) else item))


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


@dataclass(frozen=True)
class _Recipe:
    load: Callable[[Any, Any], tuple[Any, ...]]
    make: Callable[..., Kind[Any, Any]]
    """Of what was loaded, and the options by name."""
    options: Sequence[str]


def _load_encoder(model: EncoderSource, tokenizer: Any) -> tuple[LoadedEncoder]:
    return (load_text_encoder(model, tokenizer),)


def _make_embed(loaded: LoadedEncoder, **options: Any) -> Embed:
    return Embed(loaded.encoder, loaded.tokenizer, loaded.settings.with_options(**options), loaded.find_causal)


def _make_similarity(loaded: LoadedEncoder, **options: Any) -> Similarity:
    return Similarity(_make_embed(loaded, **options))


def _load_for(purpose: str, *tasks: type[Task]) -> Callable[[Source, Any], tuple[Any, ...]]:
    return lambda model, tokenizer: load_task_model(model, tokenizer, purpose, *tasks)


_QA_OPTIONS = ("top_k", "max_answer_length", "doc_stride", "max_question_length", "handle_impossible_answer")
_RECIPES = {
    "fill-mask": _Recipe(load_language_model, FillMask, ("top_k", "targets", "max_length")),
    "embed": _Recipe(_load_encoder, _make_embed, ("pooling", "normalize", "max_length")),
    "similarity": _Recipe(_load_encoder, _make_similarity, ("pooling", "max_length")),
    "classify": _Recipe(_load_for("classify texts", *CLASSIFYING_TASKS), Classify, ("top_k", "max_length")),
    "ner": _Recipe(_load_for("find entities", TokenClassification), FindEntities, ("aggregation", "max_length")),
    "zero-shot": _Recipe(
        _load_for("choose among labels", Classification),
        ZeroShot,
        ("labels", "hypothesis", "multi_label", "max_length"),
    ),
    "qa": _Recipe(_load_for("answer questions", QuestionAnswering), AnswerQuestions, (*_QA_OPTIONS, "max_length")),
}
KINDS = tuple(_RECIPES)


@dataclass(frozen=True)
class _Habit:
    """What a name of `transformers` means: a kind of ours, with its defaults and the shape of its answers."""

    kind: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    shape: Callable[[Any], Any] | None = None
    lists_single: bool = False


def _add_batch_axis(answer: Any) -> Any:
    return answer[None] if answer.ndim > 1 else answer


_HABITS = {
    **{kind: _Habit(kind) for kind in KINDS},
    "text-classification": _Habit("classify", lists_single=True),
    "sentiment-analysis": _Habit("classify", lists_single=True),
    "token-classification": _Habit("ner", {"aggregation": "none"}),
    "question-answering": _Habit("qa", {"max_answer_length": 15}),
    "zero-shot-classification": _Habit("zero-shot", {"labels": None}),
    "feature-extraction": _Habit("embed", {"pooling": "none"}, _add_batch_axis),
    "sentence-similarity": _Habit("similarity"),
}
_WRITES_NO_TEXT = "an encoder writes no text; maskwright.generate continues one with a model of training.mode=clm"
_KINDS_INSTEAD = dict.fromkeys(
    ("text-generation", "text2text-generation", "summarization", "translation"), _WRITES_NO_TEXT
)
_OPTIONS = {
    "aggregation_strategy": "aggregation",
    "candidate_labels": "labels",
    "hypothesis_template": "hypothesis",
    "max_seq_len": "max_length",
    "max_answer_len": "max_answer_length",
    "max_question_len": "max_question_length",
    "topk": "top_k",
}
"""Options of `transformers` under our names."""
_ON_WINDOWS = "a text longer than the model is read in windows, whose size max_length= sets"
_ON_WEIGHTS = "use precision='bf16' (or fp32, fp16, int8, auto)"
_OPTIONS_INSTEAD = {
    "batch_size": "inputs are packed; batch_tokens= says how many tokens are read at a time",
    "num_workers": "inputs are tokenized in chunks without worker processes; leave it out",
    "truncation": _ON_WINDOWS,
    "padding": "inputs are packed without padding; leave it out",
    "stride": _ON_WINDOWS,
    "return_all_scores": "use top_k=None for all classes",
    "function_to_apply": "scores are what the model's problem_type asks for: softmax, sigmoid or the measure itself",
    "grouped_entities": "use aggregation_strategy='simple'",
    "ignore_labels": "tokens of class O are left out; leave out others from the answer",
    "return_tensors": "answers are NumPy arrays; torch.from_numpy(answer) makes a tensor of one",
    "align_to_words": "answers begin and end at tokens; leave it out",
    "dtype": _ON_WEIGHTS,
    "torch_dtype": _ON_WEIGHTS,
    "device_map": "use device=",
    "framework": "there is PyTorch alone; leave it out",
    "trust_remote_code": "code of a model folder is never run; leave it out",
    "revision": "download the revision with huggingface_hub.snapshot_download and give its folder as the model",
}


def resolve_kind(name: str) -> str:
    """Our kind of prediction behind a name, ours or one of `transformers`."""
    return _find_habit(name).kind


def pipeline(
    kind: str | None = None,
    model: EncoderSource | None = None,
    tokenizer: Any = None,
    *,
    device: str | int | torch.device | None = None,
    batch_tokens: int | None = None,
    precision: str | None = None,
    **options: Any,
) -> Pipeline[Any, Any]:
    """A pipeline of a kind (`fill-mask`, `embed`, `similarity`, `classify`, `ner`, `zero-shot`, `qa`) around a model.

    The model is a run, a checkpoint, a model folder or a hub id, or a model with its `tokenizer`. A named model goes to
    a GPU if there is one, another stays where it is, unless `device` says otherwise. `batch_tokens` are read at a time.
    `precision` is fp32, bf16, fp16 (GPUs), int8 (CPUs) or auto, which is for a named model: bf16 where that is clearly
    faster than fp32. A model in memory keeps its dtype, or is copied where a precision is given.
    Options: `top_k` (fill-mask, classify, qa), `targets` (fill-mask); `pooling` (embed, similarity), `normalize`
    (embed); `aggregation` (ner); `labels`, `hypothesis`, `multi_label` (zero-shot); `max_answer_length`,
    `max_question_length`, `doc_stride`, `handle_impossible_answer` (qa); `max_length`. They may be given here or to a
    call.

    Names of `transformers` do as well, with their defaults and the shape of their answers: `text-classification`,
    `sentiment-analysis`, `token-classification`, `question-answering`, `zero-shot-classification`,
    `feature-extraction`; `aggregation_strategy`, `candidate_labels`, `hypothesis_template`, `max_seq_len` and others.
    """
    name = options.pop("task", None) if kind is None else kind
    if name is None or model is None:
        raise InputError("a pipeline needs a kind and a model, such as pipeline('fill-mask', 'runs/quickstart')")
    habit = _find_habit(name)
    recipe = _RECIPES[habit.kind]
    options = {**habit.defaults, **_read_options(options, name, recipe)}
    if precision is not None:
        check_precision_name(precision)
        model = copy.deepcopy(model) if isinstance(model, nn.Module) else model
    loaded = recipe.load(model, tokenizer)
    make = partial(recipe.make, *loaded)
    built = make(**options)
    if device is not None or not isinstance(model, nn.Module | LoadedEncoder):
        built.module.to(choose_device(_name_device(device), "device"))
    chosen = None
    if precision is not None or not isinstance(model, nn.Module | LoadedEncoder):
        chosen = choose_inference_precision(precision or "auto", next(built.module.parameters()).device)
        convert(built.module, built.encoder, chosen.name)

    def remake(more: Mapping[str, Any]) -> Kind[Any, Any]:
        return make(**{**options, **_read_options(more, name, recipe)})

    return Pipeline(built, batch_tokens, remake, habit.shape, habit.lists_single, chosen)


def _find_habit(name: str) -> _Habit:
    if name in _KINDS_INSTEAD:
        raise InputError(f"no kind '{name}' of prediction: {_KINDS_INSTEAD[name]}")
    if name not in _HABITS:
        raise InputError(f"no kind '{name}' of prediction{suggest(str(name), _HABITS)}")
    return _HABITS[name]


def _read_options(given: Mapping[str, Any], kind: str, recipe: _Recipe) -> dict[str, Any]:
    """Options under our names; one that the kind does not have is refused."""
    known = [*recipe.options, *(theirs for theirs, ours in _OPTIONS.items() if ours in recipe.options)]
    options: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            advice = _OPTIONS_INSTEAD.get(name)
            raise InputError(f"{kind} has no option '{name}'" + (f": {advice}" if advice else suggest(name, known)))
        ours = _OPTIONS.get(name, name)
        if ours in options:
            raise InputError(f"'{name}' is another name of '{ours}', and both are given; keep one of them")
        options[ours] = value
    return options


def _name_device(device: str | int | torch.device | None) -> str:
    """As `transformers` numbers them: -1 is the CPU, 0 the first GPU."""
    if isinstance(device, int):
        return "cpu" if device < 0 else f"cuda:{device}"
    return "auto" if device is None else str(device)
