"""From scores of tokens to scores of spans and to answers.

B rows, S row length, N documents of a row, L the longest span, K spans.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from maskwright.batch import PackedBatch
from maskwright.tasks.qa.examples import Span
from maskwright.tasks.qa.features import Window

OUTSIDE = -1e30
"""The score of impossible answers: low enough to have no probability, and finite to avoid NaN."""
_SECOND_SEGMENT = 1
_SPARE_SPANS = 10
"""Spans kept per window beside twice those requested, as different tokens may give the same words."""


@dataclass(frozen=True)
class Spans:
    """The best spans in order, all (..., K); those with a score of `OUTSIDE` or less are none."""

    scores: Tensor
    """The sum of the start's and the end's scores."""
    starts: Tensor
    ends: Tensor
    """The last token, included."""


def arrange_documents(values: Tensor, batch: PackedBatch, num_documents: int, fill: float) -> Tensor:
    """(B, N, S, ...) of (B, S, ...): each document begins at place 0, and `fill` stands behind its end."""
    rows, length, size = values.shape
    slots = batch.document_ids * length + batch.positions  # padding goes to document 0, which is dropped
    empty = values.new_full((rows, (num_documents + 1) * length, size), fill)
    filled = empty.scatter(1, slots[..., None].expand_as(values), values)
    return filled.view(rows, num_documents + 1, length, size)[:, 1:]


def find_context_tokens(batch: PackedBatch) -> Tensor:
    """(B, S) true where an answer may be: in the second segment, without separators."""
    if batch.token_type_ids is None:
        return (batch.positions > 0) & ~batch.is_padding
    following = F.pad(batch.document_ids[:, 1:], (0, 1))
    is_last = (batch.document_ids != following) & ~batch.is_padding
    separator = torch.where(is_last, batch.input_ids, -1).max()  # every document ends with it
    return (batch.token_type_ids == _SECOND_SEGMENT) & (batch.input_ids != separator) & ~batch.is_padding


def find_best_spans(starts: Tensor, ends: Tensor, is_context: Tensor, max_length: int, num_spans: int) -> Spans:
    """Of scores (..., S) of starts and ends: spans of at most `max_length` tokens of the context."""
    length = starts.shape[-1]
    longest = min(max_length, length)
    starts, ends = (scores.float().masked_fill(~is_context, OUTSIDE) for scores in (starts, ends))
    reached = F.pad(ends, (0, longest - 1), value=OUTSIDE).unfold(-1, longest, 1)  # (..., S, L)
    scores = (starts[..., None] + reached).flatten(-2)
    missing = max(0, num_spans - scores.shape[-1])
    best, index = F.pad(scores, (0, missing), value=2 * OUTSIDE).topk(num_spans)
    index = index.clamp(max=length * longest - 1)
    first = index // longest
    return Spans(best, first, first + index % longest)


class FoundSpan(NamedTuple):
    score: float
    """The logits of start and end together."""
    first: int
    last: int
    """Places of the window's document."""


class Found(NamedTuple):
    """The predictions kept for a window; pairs of numbers are for start and end."""

    nothing: tuple[float, float]
    """Logits of no answer."""
    total: tuple[float, float]
    """The log-sum-exp of the logits of the context's tokens."""
    spans: Sequence[FoundSpan]


@dataclass(frozen=True)
class SpanAnswer:
    score: float
    start: int
    end: int
    """Characters of the context; both 0 for no answer."""


def count_kept_spans(top_k: int) -> int:
    """Spans of each window that the best answers are found among, as many as in the pipeline of transformers 4."""
    return 2 * top_k + _SPARE_SPANS


def rank_answers(windows: Sequence[Window], found: Sequence[Found], may_be_unanswered: bool) -> list[SpanAnswer]:
    """The best first; the same words once, with the probability of all spans that say them.

    Windows share one normalisation: the probability that an answer starts at a token is its share of all tokens of all
    windows (Clark and Gardner 2018, section 3.2), so that a window without the answer cannot win by being sure of
    itself. No answer counts as in the window that speaks least for it. For a single window both are what the pipeline
    of transformers 4 gave.
    """
    nothing = min((one.nothing for one in found), key=sum)
    total = sum(_add_logarithms([nothing[side], *(one.total[side] for one in found)]) for side in (0, 1))
    places: dict[Span, float] = {}
    for window, one in zip(windows, found, strict=True):
        for place, probability in _sum_places(window, one, total).items():
            places[place] = max(probability, places.get(place, 0.0))  # what two windows share is one part of the text
    best: dict[str, SpanAnswer] = {}
    for (start, end), probability in sorted(places.items(), key=lambda item: -item[1]):
        words = windows[0].context.text[start:end].lower()
        said = best.get(words, SpanAnswer(0.0, start, end))
        best[words] = replace(said, score=said.score + probability)
    answers = list(best.values())
    if may_be_unanswered or not answers:
        answers.append(SpanAnswer(math.exp(sum(nothing) - total), 0, 0))
    return sorted(answers, key=lambda answer: -answer.score)


def _sum_places(window: Window, found: Found, total: float) -> dict[Span, float]:
    """The probability of each part of the context, summed over spans with the same words."""
    places: dict[Span, float] = {}
    for span in found.spans:
        if span.score > OUTSIDE:
            start, end = window.find_characters(span.first, span.last)
            if start < end:
                places[start, end] = places.get((start, end), 0.0) + math.exp(span.score - total)
    return places


def _add_logarithms(values: Sequence[float]) -> float:
    largest = max(values)
    return largest + math.log(sum(math.exp(value - largest) for value in values))
