"""`pipeline(kind, model)`: from texts to answers, with any model this package can read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from torch import nn

from maskwright.errors import InputError
from maskwright.inference.classification import CLASSIFYING_TASKS, Classify
from maskwright.inference.embedding import Embed
from maskwright.inference.kind import Answer, Item, Kind, Name, Prepared
from maskwright.inference.loading import Source, load_language_model, load_text_encoder
from maskwright.inference.mask_filling import FillMask
from maskwright.inference.ner import FindEntities
from maskwright.inference.qa import AnswerQuestions
from maskwright.inference.runner import run_packed
from maskwright.inference.samples import Sample
from maskwright.inference.similarity import Similarity
from maskwright.inference.task_loading import load_task_model
from maskwright.inference.zero_shot import ZeroShot
from maskwright.suggestions import suggest
from maskwright.tasks.ner.token_classification import TokenClassification
from maskwright.tasks.qa.question_answering import QuestionAnswering
from maskwright.tasks.sequence.classification import Classification
from maskwright.training.device import choose_device

_CHUNK_ITEMS = 1_000
_CHUNK_CHARS = 1_000_000
"""Inputs tokenized at a time."""


class Pipeline(Generic[Item, Answer]):
    """Answers in the order of the inputs, which are sorted by length and packed on the way to the encoder."""

    def __init__(self, kind: Kind[Item, Answer], batch_tokens: int | None = None) -> None:
        self.kind = kind
        self.batch_tokens = batch_tokens

    def __call__(self, inputs: Any) -> Any:
        """The answer to one input, or a list of answers to several."""
        items, is_single = self.kind.as_items(inputs)
        answers = [answer for _, answer in self.stream(items)]
        return answers[0] if is_single else answers

    def stream(self, items: Iterable[Item]) -> Iterator[tuple[Item, Answer]]:
        """Inputs with their answers, one after another; memory does not grow with their number."""
        waiting: deque[tuple[Item, Prepared]] = deque()
        kind = self.kind
        results = run_packed(
            kind.encoder,
            self._samples(items, waiting),
            kind.reduce,
            pad_token_id=kind.pad_token_id,
            batch_tokens=self.batch_tokens,
            find_causal=kind.find_causal,
        )
        reduced: list[Any] = []
        for result in results:
            reduced.append(result)
            item, prepared = waiting[0]
            if len(reduced) == len(prepared.samples):
                waiting.popleft()
                yield item, kind.answer(prepared, reduced)
                reduced = []

    def records(self, items: Iterable[Item]) -> Iterator[dict[str, Any]]:
        """Inputs and answers as the lines of a file."""
        return (self.kind.record(item, answer) for item, answer in self.stream(items))

    def _samples(self, items: Iterable[Item], waiting: deque[tuple[Item, Prepared]]) -> Iterator[Sample]:
        for first, chunk in _cut_chunks(items):
            prepared = self.kind.prepare(chunk, self._number_from(first + 1))
            for item, one in zip(chunk, prepared, strict=True):
                waiting.append((item, one))
                yield from one.samples

    def _number_from(self, first: int) -> Name:
        return lambda place: f"{self.kind.item_name} {first + place:,}"


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


def _count_chars(item: Any) -> int:
    return len(item) if isinstance(item, str) else sum(map(len, item))


@dataclass(frozen=True)
class _Recipe:
    build: Callable[[Source, Any, Mapping[str, Any]], Kind[Any, Any]]
    options: Sequence[str]


def _build_fill_mask(model: Source, tokenizer: Any, options: Mapping[str, Any]) -> Kind[Any, Any]:
    return FillMask(*load_language_model(model, tokenizer), **options)


def _build_embed(model: Source, tokenizer: Any, options: Mapping[str, Any]) -> Embed:
    loaded = load_text_encoder(model, tokenizer)
    return Embed(loaded.encoder, loaded.tokenizer, loaded.settings.with_options(**options), loaded.find_causal)


def _build_similarity(model: Source, tokenizer: Any, options: Mapping[str, Any]) -> Kind[Any, Any]:
    return Similarity(_build_embed(model, tokenizer, options))


def _build_classify(model: Source, tokenizer: Any, options: Mapping[str, Any]) -> Kind[Any, Any]:
    return Classify(*load_task_model(model, tokenizer, "classify texts", *CLASSIFYING_TASKS), **options)


def _build_ner(model: Source, tokenizer: Any, options: Mapping[str, Any]) -> Kind[Any, Any]:
    return FindEntities(*load_task_model(model, tokenizer, "find entities", TokenClassification), **options)


def _build_zero_shot(model: Source, tokenizer: Any, options: Mapping[str, Any]) -> Kind[Any, Any]:
    return ZeroShot(*load_task_model(model, tokenizer, "choose among labels", Classification), **options)


def _build_qa(model: Source, tokenizer: Any, options: Mapping[str, Any]) -> Kind[Any, Any]:
    return AnswerQuestions(*load_task_model(model, tokenizer, "answer questions", QuestionAnswering), **options)


_QA_OPTIONS = ("top_k", "max_answer_length", "doc_stride", "max_question_length", "handle_impossible_answer")
_RECIPES = {
    "fill-mask": _Recipe(_build_fill_mask, ("top_k", "targets", "max_length")),
    "embed": _Recipe(_build_embed, ("pooling", "normalize", "max_length")),
    "similarity": _Recipe(_build_similarity, ("pooling", "max_length")),
    "classify": _Recipe(_build_classify, ("top_k", "max_length")),
    "ner": _Recipe(_build_ner, ("aggregation", "max_length")),
    "zero-shot": _Recipe(_build_zero_shot, ("labels", "hypothesis", "multi_label", "max_length")),
    "qa": _Recipe(_build_qa, (*_QA_OPTIONS, "max_length")),
}
KINDS = tuple(_RECIPES)


def pipeline(
    kind: str,
    model: Source,
    tokenizer: Any = None,
    *,
    device: str | None = None,
    batch_tokens: int | None = None,
    **options: Any,
) -> Pipeline[Any, Any]:
    """A pipeline of a kind (`fill-mask`, `embed`, `similarity`, `classify`, `ner`, `zero-shot`, `qa`) around a model.

    The model is a run, a checkpoint, a model folder or a hub id, or a model with its `tokenizer`. A named model goes to
    a GPU if there is one, another stays where it is, unless `device` says otherwise. `batch_tokens` are read at a time.
    Options: `top_k` (fill-mask, classify, qa), `targets` (fill-mask); `pooling` (embed, similarity), `normalize`
    (embed); `aggregation` (ner); `labels`, `hypothesis`, `multi_label` (zero-shot); `max_answer_length`,
    `max_question_length`, `doc_stride`, `handle_impossible_answer` (qa); `max_length`.
    """
    if kind not in _RECIPES:
        raise InputError(f"no kind '{kind}' of prediction{suggest(kind, KINDS)}")
    known = _RECIPES[kind].options
    for name in options:
        if name not in known:
            raise InputError(f"{kind} has no option '{name}'{suggest(name, known)}")
    built = _RECIPES[kind].build(model, tokenizer, options)
    if device is not None or not isinstance(model, nn.Module):
        built.module.to(choose_device(device or "auto", "device"))
    return Pipeline(built, batch_tokens)
