"""Extractive question answering: where in its context an answer starts and ends, and SQuAD's scores of that.

B rows, S row length, N documents of a row, K spans kept of a window.
"""

from __future__ import annotations

import math
import re
import string
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from maskwright.batch import IGNORED_LABEL, PackedBatch, find_asked
from maskwright.errors import InputError
from maskwright.objectives.loss import LossSums
from maskwright.tasks.config import TaskConfig
from maskwright.tasks.qa.answers import (
    OUTSIDE,
    Found,
    FoundSpan,
    SpanAnswer,
    Spans,
    arrange_documents,
    count_kept_spans,
    find_best_spans,
    find_context_tokens,
    rank_answers,
)
from maskwright.tasks.qa.examples import Question
from maskwright.tasks.qa.features import MAX_ANSWER_LENGTH, NO_ANSWER, AskedWindow
from maskwright.tasks.task import Scores, Task, compute_f1

_NUM_SPANS = count_kept_spans(top_k=1)
Floats = NDArray[np.float64]
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


class QuestionAnswering(Task):
    """Cross-entropy over the tokens of a window, the mean of start and end; [CLS] means no answer."""

    default_metric = "window_f1"
    num_outputs = 2
    num_figures = 2
    """Sums of exact matches and of F1, both over the windows."""

    def __init__(self, max_answer_length: int = MAX_ANSWER_LENGTH) -> None:
        super().__init__()
        self.max_answer_length = max_answer_length

    @classmethod
    def from_examples(cls, examples: Sequence[Question], config: TaskConfig) -> QuestionAnswering:
        for name, is_set in (("class-weights", config.class_weights), ("label-smoothing", config.label_smoothing)):
            if is_set:
                raise InputError(f"--{name} is for classes; question answering has none: leave it out")
        if not any(question.spans for question in examples):
            raise InputError(f"no question of {config.train} has an answer; there is nothing to learn")
        return cls(config.max_answer_length or MAX_ANSWER_LENGTH)

    @classmethod
    def from_description(cls, config: Mapping[str, Any]) -> QuestionAnswering:
        return cls()

    def check_examples(self, examples: Sequence[Question]) -> None:
        """Nothing is refused here; targets are computed with the windows."""

    def encode_targets(self, examples: Sequence[AskedWindow]) -> Tensor:
        """(windows, 2): the first and the last token of the answer."""
        return torch.tensor([one.find_target() for one in examples])

    def arrange(self, logits: Tensor, batch: PackedBatch, targets: Tensor) -> Tensor:
        """(B, N, S, 3) of (B, S, 2): start and end logits of each document's tokens, then 1 where an answer may be."""
        is_context = find_context_tokens(batch).float()[..., None]
        per_token = torch.cat([logits.float(), is_context], dim=-1)
        return arrange_documents(per_token, batch, targets.shape[1], OUTSIDE)

    def loss_sums(self, logits: Tensor, targets: Tensor) -> LossSums:
        """Arranged logits (B, N, S, 3) against targets (B, N, 2)."""
        per_question = logits[..., :2].movedim(-1, 2)  # (B, N, 2, S)
        loss = F.cross_entropy(
            per_question.flatten(0, 2), targets.flatten(), reduction="sum", ignore_index=IGNORED_LABEL
        )
        is_asked = find_asked(targets)
        with torch.no_grad():
            first, last = self._choose(logits)
            wanted_first, wanted_last = targets.unbind(-1)
            is_exact = (first == wanted_first) & (last == wanted_last)
            shared = (torch.minimum(last, wanted_last) - torch.maximum(first, wanted_first) + 1).clamp(min=0)
            f1 = 2.0 * shared / (last - first + wanted_last - wanted_first + 2)
            figures = torch.stack([one.masked_fill(~is_asked, 0.0).sum() for one in (is_exact.float(), f1)])
        return LossSums(0.5 * loss[None], is_asked.sum()[None], figures)

    def condense(self, logits: Tensor) -> Tensor:
        """(B, N, 2 + K, 3): logits of no answer, the context's totals, then score, first and last token of spans."""
        spans = self._find_spans(logits, _NUM_SPANS)
        kept = torch.stack([spans.scores, spans.starts.float(), spans.ends.float()], dim=-1)
        sides, is_context = logits[..., :2], logits[..., 2:] > 0
        total = sides.masked_fill(~is_context, OUTSIDE).logsumexp(-2)
        head = torch.stack([sides[..., NO_ANSWER, :], total], dim=-2)
        return torch.cat([F.pad(head, (0, 1)), kept], dim=-2)

    def _choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The first and the last token of the best answer to each window, (B, N) both."""
        best = self._find_spans(logits, 1)
        is_nothing = _score_nothing(logits) >= best.scores[..., 0]
        return best.starts[..., 0].masked_fill(is_nothing, NO_ANSWER), best.ends[..., 0].masked_fill(
            is_nothing, NO_ANSWER
        )

    def _find_spans(self, logits: Tensor, num_spans: int) -> Spans:
        starts, ends, is_context = logits.unbind(-1)
        return find_best_spans(starts, ends, is_context > 0, self.max_answer_length, num_spans)

    def compute_metrics(self, sums: Sequence[float]) -> Scores:
        loss_sum, count, exact, f1 = sums
        num_windows = count or float("nan")
        return {"loss": loss_sum / num_windows, "window_exact": exact / num_windows, "window_f1": f1 / num_windows}

    def score_answers(self, answers: Tensor, targets: Tensor, examples: Sequence[AskedWindow]) -> Scores:
        """SQuAD's scores over questions, for the answers of `pipeline("qa")`."""
        pairs = zip(examples, answers.tolist(), strict=True)
        groups = groupby(pairs, key=lambda pair: id(pair[0].question))
        return score_replies([_reply(list(group)) for _, group in groups])

    def describe(self) -> dict[str, Any]:
        """Two outputs are what Hugging Face takes where nothing is said."""
        return {}

    def describe_labels(self, targets: Tensor) -> str:
        answered = targets[targets[:, 0] > NO_ANSWER]
        lengths = (answered[:, 1] - answered[:, 0] + 1).float()
        return f"{len(answered) / len(targets):.0%} of the windows have an answer, of {lengths.mean():.1f} tokens"


def _score_nothing(logits: Tensor) -> Tensor:
    return logits[..., NO_ANSWER, :2].sum(-1)


def _reply(windows: Sequence[tuple[AskedWindow, list[list[float]]]]) -> Reply:
    """The best answer in all windows of a question, compared with no answer."""
    question = windows[0][0].question
    found = [_read_found(kept) for _, kept in windows]
    ranked = rank_answers([asked.window for asked, _ in windows], found, may_be_unanswered=True)
    nothing = next(one for one in ranked if one.start == one.end)
    best = next((one for one in ranked if one.start < one.end), None)
    if best is None:
        return Reply("", math.inf, question.answers)
    return Reply(question.context[best.start : best.end], _compute_margin(nothing, best), question.answers)


def _compute_margin(nothing: SpanAnswer, best: SpanAnswer) -> float:
    """The logarithm of how much more probable no answer is; a probability may be too small for a number."""
    least = sys.float_info.min
    return math.log(max(nothing.score, least)) - math.log(max(best.score, least))


def _read_found(kept: Sequence[Sequence[float]]) -> Found:
    nothing, total, *spans = kept
    return Found(
        (nothing[0], nothing[1]),
        (total[0], total[1]),
        [FoundSpan(score, int(first), int(last)) for score, first, last in spans],
    )


@dataclass(frozen=True)
class Reply:
    """The best span of a context, with the annotators' answers."""

    text: str
    margin: float
    """The score of no answer minus that of the span; above 0 the reply is no answer."""
    gold: tuple[str, ...]
    """Empty where the context does not answer the question."""


def normalise_answer(text: str) -> str:
    """Lower case, without punctuation and English articles, with single blanks."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def score_text(text: str, gold: Sequence[str]) -> tuple[float, float]:
    """Exact match and F1 over words, each with the best-matching gold answer; "" if there is no gold answer."""
    known = [answer for answer in map(normalise_answer, gold) if answer] or [""]
    given = normalise_answer(text)
    return float(given in known), max(_score_words(given.split(), answer.split()) for answer in known)


def score_replies(replies: Sequence[Reply]) -> dict[str, float]:
    """`exact` and `f1` over questions; where some have no answer, also apart, and at the best threshold.

    If every question has an answer, a reply is always given, as in SQuAD v1.1.
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
