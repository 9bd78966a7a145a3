"""SQuAD's scores of answers as texts (Rajpurkar et al. 2016, section 6.1; 2018, section 5)."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from maskwright.tasks.scores import compute_f1

Floats = NDArray[np.float64]
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


@dataclass(frozen=True)
class Reply:
    """The best span of a context, beside what annotators said."""

    text: str
    margin: float
    """How much better no answer at all scores than the span; above 0 the reply is none."""
    gold: tuple[str, ...]
    """Empty where the context does not answer the question."""


def normalise_answer(text: str) -> str:
    """Lower case, without punctuation and English articles, with single blanks."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def score_text(text: str, gold: Sequence[str]) -> tuple[float, float]:
    """Exact match and F1 over words, each against the gold answer that suits it best; no gold answer is ""."""
    known = [answer for answer in map(normalise_answer, gold) if answer] or [""]
    given = normalise_answer(text)
    return float(given in known), max(_score_words(given.split(), answer.split()) for answer in known)


def score_replies(replies: Sequence[Reply]) -> dict[str, float]:
    """`exact` and `f1` over questions; where some have no answer, also apart, and at the best threshold.

    As in SQuAD v1.1 a reply is always given where every question has an answer.
    """
    is_answerable = np.asarray([bool(reply.gold) for reply in replies])
    margins = np.asarray([reply.margin for reply in replies])
    given = np.asarray([score_text(reply.text, reply.gold) for reply in replies])
    if is_answerable.all():
        return {"exact": float(given[:, 0].mean()), "f1": float(given[:, 1].mean()), "questions": len(replies)}
    refused = np.where(is_answerable, 0.0, 1.0)
    scores = np.where((margins > 0.0)[:, None], refused[:, None], given)
    found: dict[str, float] = {}
    for place, name in enumerate(("exact", "f1")):
        found[name] = scores[:, place].mean()
        if is_answerable.any():
            found[f"has_answer_{name}"] = scores[is_answerable, place].mean()
        # As officially: whatever is said where there is no answer is wrong, be it an article or a comma.
        best, threshold = _find_best(given[:, place] * is_answerable, refused, margins)
        found |= {f"best_{name}": best, f"best_{name}_threshold": threshold}
    found["no_answer_exact"] = scores[~is_answerable, 0].mean()
    return {**{name: float(score) for name, score in found.items()}, "questions": len(replies)}


def _find_best(given: Floats, refused: Floats, margins: Floats) -> tuple[float, float]:
    """The best mean, and the margin up to which replies are given for it."""
    order = np.argsort(margins, kind="stable")
    gains = np.concatenate([[0.0], np.cumsum((given - refused)[order])])
    thresholds = np.concatenate([[0.0], margins[order]])
    number = int(gains.argmax())
    return float((refused.sum() + gains[number]) / len(given)), float(thresholds[number])


def _score_words(given: Sequence[str], gold: Sequence[str]) -> float:
    if not given or not gold:
        return float(given == gold)
    num_common = sum((Counter(given) & Counter(gold)).values())
    return compute_f1(num_common, len(given), len(gold))
