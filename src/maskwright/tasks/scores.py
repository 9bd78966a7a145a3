"""Scores from counts and moments. C classes.

Hits, predicted and actual counts of each class are enough for all of them, so no matrix of confusions is kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

Counts = Sequence[float]
_LEAST_VARIANCE = 1e-12
"""Of the mean square: below it the difference of two sums is rounding."""


def compute_f1(num_hits: float, num_predicted: float, num_actual: float) -> float:
    """The harmonic mean of precision and recall; 0 where there is nothing to find or nothing found."""
    return 2.0 * num_hits / (num_predicted + num_actual) if num_predicted + num_actual else 0.0


def compute_macro_f1(hits: Counts, predicted: Counts, actual: Counts) -> float:
    """The mean over the classes that occur, predicted or actual."""
    scores = [compute_f1(*one) for one in zip(hits, predicted, actual, strict=True) if one[1] + one[2]]
    return sum(scores) / len(scores) if scores else math.nan


def compute_matthews(hits: Counts, predicted: Counts, actual: Counts) -> float:
    """The correlation of answers and labels, for any number of classes (Gorodkin 2004); 0 where one is constant."""
    total = sum(actual)
    if not total:
        return math.nan
    covariance = sum(hits) * total - sum(p * a for p, a in zip(predicted, actual, strict=True))
    spread = (total**2 - sum(p * p for p in predicted)) * (total**2 - sum(a * a for a in actual))
    return covariance / math.sqrt(spread) if spread > 0 else 0.0


def compute_pearson(count: float, moments: Sequence[float]) -> float:
    """From the sums of x, y, x*x, y*y and x*y; NaN where one of the two is constant."""
    if not count:
        return math.nan
    x, y, xx, yy, xy = (moment / count for moment in moments)
    variances = xx - x * x, yy - y * y
    if variances[0] <= _LEAST_VARIANCE * xx or variances[1] <= _LEAST_VARIANCE * yy:
        return math.nan
    return (xy - x * y) / math.sqrt(variances[0] * variances[1])


def compute_spearman(first: Tensor, second: Tensor) -> float:
    """The correlation of the ranks of two vectors; equal values share their mean rank."""
    x, y = _rank(first), _rank(second)
    return compute_pearson(len(x), [float(one.sum()) for one in (x, y, x * x, y * y, x * y)])


def _rank(values: Tensor) -> Tensor:
    """Centred, so that the moments lose nothing."""
    _, places, counts = torch.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    ranks = (last - (counts - 1) / 2.0)[places]
    return ranks - ranks.mean()
