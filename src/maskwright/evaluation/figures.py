"""Per-item values to figures: number, mean and interval of each group of items, and of the difference of two models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.evaluation.statistics import (
    CONFIDENCE,
    Floats,
    bootstrap_difference,
    bootstrap_mean,
    compute_mean,
    sign_flip_p_value,
)

PAIRED_TEST = "sign-flip permutation test, two-sided"
INTERVAL = f"{CONFIDENCE:.0%} percentile bootstrap over items"
_LARGEST_EXPONENT = 700.0

Groups = Mapping[tuple[str, str], NDArray[np.bool_]]
"""By kind and name, as ('phenomenon', 'binding'): which items belong to a group."""


@dataclass(frozen=True)
class Measure:
    """What a suite asks of each item: a value, or a sum over so many tokens."""

    name: str
    sums: Floats
    counts: Floats
    is_perplexity: bool = False
    """Whether the figure is e to the power of minus the mean; two of them are compared by that mean alone."""

    @classmethod
    def of_values(cls, name: str, values: Floats) -> Measure:
        return cls(name, values, np.ones(len(values)))

    def select(self, chosen: NDArray[np.bool_]) -> Measure:
        return replace(self, sums=self.sums[chosen], counts=self.counts[chosen])


@dataclass(frozen=True)
class Figure:
    """One line of a table."""

    kind: str
    group: str
    measure: str
    n: int
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """The first model's mean less the second's, over the same items."""

    kind: str
    group: str
    measure: str
    n: int
    difference: float
    low: float
    high: float
    p_value: float


def compute_figures(measures: Sequence[Measure], groups: Groups) -> list[Figure]:
    return [
        _summarise(measure.select(chosen), kind, name)
        for (kind, name), chosen in groups.items()
        for measure in measures
    ]


def compute_differences(first: Sequence[Measure], second: Sequence[Measure], groups: Groups) -> list[Difference]:
    """Of the same measures of two models on the same items, perplexities left out."""
    return [
        _compare(own.select(chosen), other.select(chosen), kind, name)
        for (kind, name), chosen in groups.items()
        for own, other in zip(first, second, strict=True)
        if not own.is_perplexity
    ]


def to_json(line: Figure | Difference) -> dict[str, Any]:
    """With null where there is no number: one item has no interval."""
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value for name, value in asdict(line).items()
    }


def _summarise(measure: Measure, kind: str, group: str) -> Figure:
    mean, interval = compute_mean(measure.sums, measure.counts), bootstrap_mean(measure.sums, measure.counts)
    numbers = (mean, interval.low, interval.high)
    if measure.is_perplexity:
        numbers = (_exponentiate(-mean), _exponentiate(-interval.high), _exponentiate(-interval.low))
    return Figure(kind, group, measure.name, len(measure.sums), *numbers)


def _compare(own: Measure, other: Measure, kind: str, group: str) -> Difference:
    difference = compute_mean(own.sums, own.counts) - compute_mean(other.sums, other.counts)
    interval = bootstrap_difference((own.sums, own.counts), (other.sums, other.counts))
    p_value = sign_flip_p_value(own.sums - other.sums)
    return Difference(kind, group, own.name, len(own.sums), difference, interval.low, interval.high, p_value)


def _exponentiate(exponent: float) -> float:
    return math.exp(min(exponent, _LARGEST_EXPONENT))
