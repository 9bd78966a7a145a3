"""Extractive question answering: the part of a context that answers a question, with its characters.

N windows, S tokens of the longest, K spans.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskwright.errors import InputError, InputWarning, check_count
from maskwright.inference.layout import EncodedBatch, Reduction, Sample
from maskwright.inference.runner import Name, Prepared, TaskKind
from maskwright.inference.texts import choose_max_length, encode_texts, list_inputs
from maskwright.tasks.features import find_tokens_between
from maskwright.tasks.model import TaskModel
from maskwright.tasks.qa.answers import (
    OUTSIDE,
    Found,
    FoundSpan,
    SpanAnswer,
    count_kept_spans,
    find_best_spans,
    rank_answers,
)
from maskwright.tasks.qa.features import (
    MAX_ANSWER_LENGTH,
    MAX_QUESTION_LENGTH,
    NO_ANSWER,
    EncodedContext,
    Window,
    WindowRule,
    encode_contexts,
)
from maskwright.text.tokenizer.tokenizer import Tokenizer

QUESTION_ITEM = "question"
_KEYS = ("question", "context")
_USUAL_LENGTH = 384
"""Tokens of a window where none are asked for, as in the pipeline of transformers."""
Asked = tuple[str, str]
"""A question and its context."""
Reply = dict[str, Any] | list[dict[str, Any]]


@dataclass
class AskedSample(Sample):
    window: Window | None = None


@dataclass
class PreparedQuestion(Prepared):
    context: EncodedContext


class AnswerQuestions(TaskKind[Asked, Reply]):
    """`{"score", "start", "end", "answer"}` of a question and its context, or the `top_k` best as a list.

    `start` and `end` count the context's characters, so that `context[start:end]` is the answer. A context longer than
    `max_length` is read in windows that share `doc_stride` tokens. With `handle_impossible_answer` it may be "".
    """

    item_name = QUESTION_ITEM
    input_names = _KEYS
    lacking = "no text in the question or its context"

    def __init__(
        self,
        model: TaskModel,
        tokenizer: Tokenizer,
        *,
        top_k: int = 1,
        max_answer_length: int = MAX_ANSWER_LENGTH,
        doc_stride: int | None = None,
        max_question_length: int = MAX_QUESTION_LENGTH,
        handle_impossible_answer: bool = False,
        max_length: int | None = None,
    ) -> None:
        for name, value in (("top_k", top_k), ("max_answer_length", max_answer_length)):
            check_count(name, value)
        assert model.task_head.is_per_token, "question answering has logits of tokens"
        super().__init__(model, tokenizer)
        self.top_k = top_k
        self.max_answer_length = max_answer_length
        self.may_be_unanswered = handle_impossible_answer
        longest = choose_max_length(self.encoder, max_length)
        self._between = find_tokens_between(tokenizer)
        self._rule = WindowRule(
            min(longest, _USUAL_LENGTH) if max_length is None else longest,
            len(self._between),
            doc_stride,
            max_question_length,
        )

    def prepare(self, items: Sequence[Asked], name: Name, tokenized: Any = None) -> list[PreparedQuestion]:
        questions = encode_texts(self.tokenizer, self.encoder, [question for question, _ in items], name)
        for place, (_, text) in enumerate(items):
            if not text.strip():
                raise InputError(f"the context of {name(place)} is empty; give it some text, or leave it out")
        contexts = encode_contexts([context for _, context in items], self.tokenizer)
        prepared = []
        for place, (ids, (_, text)) in enumerate(zip(questions, items, strict=True)):
            if not ids or not contexts[text].ids:
                problem = f"{name(place)} or its context has no token of the model's vocabulary; leave it out"
                prepared.append(PreparedQuestion([], contexts[text], problem=problem))
                continue
            samples = self._cut(self._shorten(ids, name(place)), contexts[text], name(place))
            prepared.append(PreparedQuestion(samples, contexts[text]))
        return prepared

    def _shorten(self, ids: list[int], name: str) -> list[int]:
        longest = self._rule.max_question_length
        if len(ids) > longest:
            warnings.warn(
                f"{name} has {len(ids):,} tokens and is asked by its first {longest}; raise max_question_length if the"
                " others matter",
                InputWarning,
                stacklevel=2,
            )
        return ids[:longest]

    def _cut(self, ids: list[int], context: EncodedContext, name: str) -> list[AskedSample]:
        cls, sep = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        beginning, lead = [cls, *ids, sep], self._rule.find_lead(len(ids))
        samples = []
        for start, stop in self._rule.cut(len(ids), len(context.ids), name):
            end = [*self._between, *context.ids[start:stop], sep]
            types = [0] * len(beginning) + [1] * len(end)
            samples.append(AskedSample([*beginning, *end], types, Window(context, start, stop, lead)))
        return samples

    def reduce(self, batch: EncodedBatch[AskedSample]) -> Reduction:
        padded = _pad(batch, self.compute_logits(batch))
        is_context = self._find_context(batch, padded)
        num_spans = count_kept_spans(self.top_k)
        starts, ends = padded.unbind(-1)
        spans = find_best_spans(starts, ends, is_context, self.max_answer_length, num_spans)
        totals = _add_up(padded.masked_fill(~is_context[..., None], OUTSIDE), batch.lengths)
        return Reduction((padded[:, NO_ANSWER], totals, spans.scores, spans.starts, spans.ends), _list_found)

    def _find_context(self, batch: EncodedBatch[AskedSample], padded: Tensor) -> Tensor:
        """(N, S) true for the tokens of each window, whose place every sample knows."""
        windows = [_window_of(sample) for sample in batch.samples]
        bounds = [[window.lead, window.lead + window.stop - window.start] for window in windows]
        first, behind = batch.send(np.asarray(bounds)).T[..., None]
        places = torch.arange(padded.shape[1], device=padded.device)
        return (places >= first) & (places < behind)

    def answer(self, prepared: PreparedQuestion, reduced: Sequence[Found]) -> Reply:
        windows = [_window_of(sample) for sample in prepared.samples]
        ranked = rank_answers(windows, reduced, self.may_be_unanswered)[: self.top_k]
        answers = [_describe(one, prepared.context.text) for one in ranked]
        return answers[0] if self.top_k == 1 else answers

    @property
    def example(self) -> dict[str, Any]:
        reply = {"score": 0.0, "start": 0, "end": 0, "answer": ""}
        return self.describe_answer(reply if self.top_k == 1 else [reply])

    def describe_input(self, item: Asked) -> dict[str, Any]:
        return dict(zip(_KEYS, item, strict=True))

    def describe_answer(self, answer: Reply) -> dict[str, Any]:
        return answer if isinstance(answer, dict) else {"answers": answer}

    def as_items(self, inputs: Any) -> tuple[list[Asked], bool]:
        """One question is a dictionary or a tuple of two texts; several are a list of such."""
        if isinstance(inputs, Mapping | tuple | str) or not isinstance(inputs, Iterable):
            return [_as_asked(inputs)], True
        return [_as_asked(one) for one in inputs], False


def _list_found(*parts: Tensor) -> list[Found]:
    lists = [one.tolist() for one in parts]
    return [
        Found(nothing, total, [FoundSpan(*span) for span in zip(scores, firsts, lasts, strict=True)])
        for nothing, total, scores, firsts, lasts in zip(*lists, strict=True)
    ]


def _pad(batch: EncodedBatch[AskedSample], logits: Tensor) -> Tensor:
    """(N, S, 2) of logits (T, 2), with impossible ones behind each window's end."""
    lengths = np.asarray(batch.lengths)
    places = np.arange(lengths.max())
    indices = (np.cumsum(lengths) - lengths)[:, None] + np.minimum(places, lengths[:, None] - 1)
    is_behind = places >= lengths[:, None]
    return logits[batch.send(indices)].masked_fill(batch.send(is_behind)[..., None], OUTSIDE)


def _add_up(padded: Tensor, lengths: Sequence[int]) -> Tensor:
    """(N, 2) logarithms of sums over (N, S, 2).

    On a CPU those of each window by itself: the order of a sum depends on its length, and so here on other windows.
    """
    if padded.device.type != "cpu":
        return padded.logsumexp(1)
    return torch.stack([one[:length].logsumexp(0) for one, length in zip(padded, lengths, strict=True)])


def _as_asked(given: Any) -> Asked:
    parts: Any = [given[key] for key in _KEYS if key in given] if isinstance(given, Mapping) else given
    parts = list_inputs(parts) if isinstance(parts, tuple | list) else []
    if len(parts) != len(_KEYS) or not all(isinstance(part, str) for part in parts):
        raise InputError(f"an input is {given!r:.80}; expected a question and its context: {' and '.join(_KEYS)}")
    return parts[0], parts[1]


def _window_of(sample: Sample) -> Window:
    assert isinstance(sample, AskedSample)
    assert sample.window is not None
    return sample.window


def _describe(answer: SpanAnswer, context: str) -> dict[str, Any]:
    text = context[answer.start : answer.end]
    return {"score": answer.score, "start": answer.start, "end": answer.end, "answer": text}
