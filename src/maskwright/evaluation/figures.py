"""Per-item values to figures: number, mean and interval of each group of items, and of the difference of two models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, Self

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
    """One value per item, or a sum over the item's tokens."""

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

    def summarise(self, kind: str, group: str) -> Figure:
        mean, interval = compute_mean(self.sums, self.counts), bootstrap_mean(self.sums, self.counts)
        numbers = (mean, interval.low, interval.high)
        if self.is_perplexity:
            numbers = (_exponentiate(-mean), _exponentiate(-interval.high), _exponentiate(-interval.low))
        return Figure(kind, group, self.name, len(self.sums), *numbers)

    def compare(self, other: Measure, kind: str, group: str) -> Difference | None:
        if self.is_perplexity:
            return None
        difference = compute_mean(self.sums, self.counts) - compute_mean(other.sums, other.counts)
        interval = bootstrap_difference((self.sums, self.counts), (other.sums, other.counts))
        p_value = sign_flip_p_value(self.sums - other.sums)
        return Difference(kind, group, self.name, len(self.sums), difference, interval.low, interval.high, p_value)


class AnyMeasure(Protocol):
    """What a table has a line for: a mean over items, or something else that all items are needed for."""

    @property
    def name(self) -> str: ...

    def select(self, chosen: NDArray[np.bool_]) -> Self:
        """The measure of some of the items."""
        ...

    def summarise(self, kind: str, group: str) -> Figure: ...

    def compare(self, other: Self, kind: str, group: str) -> Difference | None:
        """The difference to another model's on the same items; None where two figures do not compare."""
        ...


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
    """NaN where the difference is not tested."""


def compute_figures(measures: Sequence[AnyMeasure], groups: Groups) -> list[Figure]:
    return [
        measure.select(chosen).summarise(kind, name) for (kind, name), chosen in groups.items() for measure in measures
    ]


def compute_differences(first: Sequence[AnyMeasure], second: Sequence[AnyMeasure], groups: Groups) -> list[Difference]:
    """Differences of two models in the same measures on the same items, without perplexities."""
    differences = [
        own.select(chosen).compare(other.select(chosen), kind, name)
        for (kind, name), chosen in groups.items()
        for own, other in zip(first, second, strict=True)
    ]
    return [difference for difference in differences if difference is not None]


def to_json(line: Figure | Difference) -> dict[str, Any]:
    """As JSON, with null for missing numbers: one item has no interval."""
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value for name, value in asdict(line).items()
    }


def _exponentiate(exponent: float) -> float:
    return math.exp(min(exponent, _LARGEST_EXPONENT))
