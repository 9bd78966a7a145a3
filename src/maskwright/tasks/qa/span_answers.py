"""The spans of all windows of a context as one list of answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from maskwright.tasks.qa.answer_search import Span
from maskwright.tasks.qa.spans import OUTSIDE
from maskwright.tasks.qa.windows import Window

_SPARE_SPANS = 10
"""Kept of a window beside twice those asked for, as different tokens may say the same words."""


class FoundSpan(NamedTuple):
    score: float
    """The logits of start and end together."""
    first: int
    last: int
    """Places of the window's document."""


class Found(NamedTuple):
    """What is kept of a window; two numbers are those of start and end."""

    nothing: tuple[float, float]
    """Logits of no answer."""
    total: tuple[float, float]
    """The logarithm of all shares that the context's tokens have."""
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
    """The probability of each part of the context; spans of different tokens may be the same words."""
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
