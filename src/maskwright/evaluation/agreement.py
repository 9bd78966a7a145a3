"""Agreement of answers and labels, by measures that are not means over items. n items, S runs of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from maskwright.evaluation.figures import Difference, Figure
from maskwright.evaluation.statistics import Floats, bootstrap_any, swap_p_value

_CONSTANT = 1e-12


@dataclass(frozen=True)
class Agreement:
    """One of `METRICS`, averaged over the runs. Answers and labels hold class indices."""

    name: str
    answers: Floats
    """(n, S)"""
    labels: Floats
    """(n,)"""

    def select(self, chosen: NDArray[np.bool_]) -> Agreement:
        return replace(self, answers=self.answers[chosen], labels=self.labels[chosen])

    def compute_runs(self) -> Floats:
        """(S,) the measure of each run."""
        return METRICS[self.name](self.answers, self.labels)

    def summarise(self, kind: str, group: str) -> Figure:
        interval = bootstrap_any(self._draw, len(self.labels))
        mean = float(self.compute_runs().mean())
        return Figure(kind, group, self.name, len(self.labels), mean, interval.low, interval.high)

    def compare(self, other: Agreement, kind: str, group: str) -> Difference:
        """Tested by swapping the answers of the two models to an item, by a coin for each item."""
        num_items = len(self.labels)
        difference = float(self.compute_runs().mean() - other.compute_runs().mean())
        interval = bootstrap_any(lambda drawn: self._draw(drawn) - other._draw(drawn), num_items)
        p_value = swap_p_value(self._compare_answers, self._bring_to_scale(), other._bring_to_scale())
        return Difference(kind, group, self.name, num_items, difference, interval.low, interval.high, p_value)

    def _draw(self, drawn: NDArray[np.int64]) -> Floats:
        return METRICS[self.name](self.answers[drawn], self.labels[drawn]).mean(axis=-1)

    def _compare_answers(self, first: Floats, second: Floats) -> Floats:
        """Of answers brought to scale: ranks are not ranked again after a swap."""
        is_ranked = self.name == "spearman"
        compute = METRICS["pearson" if is_ranked else self.name]
        labels = _rank(self.labels[:, None])[:, 0] if is_ranked else self.labels
        return (compute(first, labels) - compute(second, labels)).mean(axis=-1)

    def _bring_to_scale(self) -> Floats:
        """Answers that can be swapped with another model's: a correlation does not care for their scale."""
        match self.name:
            case "pearson":
                return _standardise(self.answers)
            case "spearman":
                return _rank(self.answers)
        return self.answers


def compute_accuracy(answers: Floats, labels: Floats) -> Floats:
    return (answers == labels[..., None]).mean(axis=-2)


def compute_f1(answers: Floats, labels: Floats) -> Floats:
    """Of class 1; 0 where it is neither there nor found."""
    is_found, is_there = answers == 1, labels[..., None] == 1
    marked = is_found.sum(axis=-2) + is_there.sum(axis=-2)
    return 2.0 * (is_found & is_there).sum(axis=-2) / np.maximum(marked, 1)


def compute_pearson(answers: Floats, labels: Floats) -> Floats:
    """NaN if one of the two is constant."""
    correlations: Floats = (_standardise(answers) * _standardise(labels[..., None])).mean(axis=-2)
    return correlations


def compute_spearman(answers: Floats, labels: Floats) -> Floats:
    return compute_pearson(_rank(answers), _rank(labels[..., None])[..., 0])


def compute_matthews(answers: Floats, labels: Floats) -> Floats:
    """The correlation of classes 0 and 1; 0 where one of the two is constant."""
    return np.nan_to_num(compute_pearson(answers, labels), nan=0.0)


METRICS: dict[str, Callable[[Floats, Floats], Floats]] = {
    "accuracy": compute_accuracy,
    "f1": compute_f1,
    "matthews": compute_matthews,
    "pearson": compute_pearson,
    "spearman": compute_spearman,
}
"""Answers (..., n, S) and labels (..., n) to (..., S)."""


def _standardise(columns: Floats) -> Floats:
    centred = columns - columns.mean(axis=-2, keepdims=True)
    deviations = np.sqrt((centred**2).mean(axis=-2, keepdims=True))
    scales = np.abs(columns).max(axis=-2, keepdims=True, initial=0.0)
    standardised: Floats = centred / np.where(deviations > _CONSTANT * scales, deviations, np.nan)
    return standardised


def _rank(columns: Floats) -> Floats:
    """Ranks within each column of (..., n, S); equal values share their mean rank."""
    rows = np.moveaxis(columns, -1, -2).reshape(-1, columns.shape[-2])
    values, places = np.unique(rows, return_inverse=True)
    places = places.reshape(rows.shape) + len(values) * np.arange(len(rows))[:, None]
    counts = np.bincount(places.ravel(), minlength=len(values) * len(rows)).reshape(len(rows), -1)
    ranks = (np.cumsum(counts, axis=1) - (counts - 1) / 2.0).ravel()[places]
    shape = (*columns.shape[:-2], columns.shape[-1], columns.shape[-2])
    return np.moveaxis(ranks.reshape(shape), -1, -2)
