"""Intervals and tests for means over items: percentile bootstrap and sign-flip permutation test.

Everything is drawn from one fixed seed, so the same items always give the same figures. n items.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
NUM_RESAMPLES = 1_000
NUM_FLIPS = 10_000
NUM_SWAPS = 2_000
_SEED = 0
_MAX_DRAWS = 4_000_000
_MAX_VALUES = 200_000
"""Of items drawn at a time: as many as a processor's cache holds."""
_ROUNDING = 1e-9
_T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145)
"""97.5% of Student's t with 1, 2, ... degrees of freedom; with more the last one is a little too wide."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """The middle 95% of a bootstrap; NaN for a single item."""

    low: float
    high: float


def compute_mean(sums: Floats, counts: Floats) -> float:
    """The items' sums together over their counts together."""
    return float(sums.sum() / counts.sum())


def bootstrap_mean(sums: Floats, counts: Floats) -> Interval:
    """The interval of `compute_mean`, over items drawn with replacement (Efron & Tibshirani 1993)."""
    drawn = _resample(np.stack([sums, counts], axis=1))
    return _take_middle(drawn[:, 0] / drawn[:, 1])


def bootstrap_difference(first: tuple[Floats, Floats], second: tuple[Floats, Floats]) -> Interval:
    """Of the first mean less the second; both are given as (sums, counts) of the same items, drawn together."""
    drawn = _resample(np.stack([*first, *second], axis=1))
    return _take_middle(drawn[:, 0] / drawn[:, 1] - drawn[:, 2] / drawn[:, 3])


def bootstrap_any(compute: Callable[[NDArray[np.int64]], Floats], num_items: int) -> Interval:
    """Of what is computed from items drawn with replacement; draws without a value are left out.

    `compute` takes the numbers of the items of some draws, (draws, n), and gives a value for each draw.
    """
    if num_items < 2:
        return Interval(math.nan, math.nan)
    generator = np.random.default_rng(_SEED)
    draws = _split_draws(NUM_RESAMPLES, num_items)
    values = np.concatenate([compute(generator.integers(0, num_items, (size, num_items))) for size in draws])
    known = values[np.isfinite(values)]
    return _take_middle(known) if len(known) else Interval(math.nan, math.nan)


def compute_seed_interval(values: Floats) -> Interval:
    """Student's interval of the mean of a few runs, taken as normally distributed; one run has none."""
    num_runs = len(values)
    if num_runs < 2:
        return Interval(math.nan, math.nan)
    quantile = _T_QUANTILES[min(num_runs - 1, len(_T_QUANTILES)) - 1]
    half = quantile * float(values.std(ddof=1)) / math.sqrt(num_runs)
    return Interval(float(values.mean()) - half, float(values.mean()) + half)


def sign_flip_p_value(differences: Floats) -> float:
    """The two-sided p-value of a mean paired difference if each item's sign were a coin's (Fisher 1935, chapter 3).

    Exact where all signs can be listed, else over random ones with the given signs counted among them, so never 0
    (Phipson & Smyth 2010). Items without a difference cannot change it.
    """
    differing = differences[differences != 0]
    if not len(differing):
        return 1.0
    sizes, repeats = np.unique(np.abs(differing), return_counts=True)
    limit = abs(float(differing.sum())) - _ROUNDING * float(np.abs(differing).sum())
    if 1 << len(differing) <= NUM_FLIPS:
        places = np.arange(len(differing))
        signs = 2 * ((np.arange(1 << len(differing))[:, None] >> places) & 1) - 1
        return float(np.mean(np.abs(signs @ np.abs(differing)) >= limit))
    return (1 + _count_extremes(sizes, repeats, limit)) / (1 + NUM_FLIPS)


def swap_p_value(compare: Callable[[Floats, Floats], Floats], first: Floats, second: Floats) -> float:
    """The two-sided p-value of a difference if the answers of two models to an item were swapped by a coin.

    For measures that are no mean over items; `compare` takes the answers (swaps, n, runs) of both models and gives a
    difference for each swap. Never 0, and NaN where there is no difference to test.
    """
    observed = float(np.abs(compare(first[None], second[None]))[0])
    if math.isnan(observed):
        return math.nan
    if np.array_equal(first, second):
        return 1.0
    generator = np.random.default_rng(_SEED)
    num_extreme = 0
    for size in _split_draws(NUM_SWAPS, first.size):
        is_swapped = generator.random((size, len(first), 1)) < 0.5
        differences = compare(np.where(is_swapped, second, first), np.where(is_swapped, first, second))
        num_extreme += int((np.abs(differences) >= observed * (1 - _ROUNDING)).sum())
    return (1 + num_extreme) / (1 + NUM_SWAPS)


def _count_extremes(sizes: Floats, repeats: NDArray[np.int64], limit: float) -> int:
    """Flips at least as far from 0; equal sizes are flipped together, by how many of them come up positive."""
    generator = np.random.default_rng(_SEED)
    per_chunk = max(1, _MAX_DRAWS // len(sizes))
    num_extreme = 0
    for start in range(0, NUM_FLIPS, per_chunk):
        num_flips = min(per_chunk, NUM_FLIPS - start)
        num_positive = generator.binomial(repeats, 0.5, size=(num_flips, len(sizes)))
        num_extreme += int((np.abs((2 * num_positive - repeats) @ sizes) >= limit).sum())
    return num_extreme


def _resample(columns: Floats) -> Floats:
    """(resamples, columns) sums over n rows drawn with replacement."""
    generator = np.random.default_rng(_SEED)
    num_items = len(columns)
    if num_items < 2:
        return np.full((1, columns.shape[1]), math.nan)
    return np.stack([columns[generator.integers(0, num_items, num_items)].sum(axis=0) for _ in range(NUM_RESAMPLES)])


def _split_draws(num_draws: int, size: int) -> list[int]:
    """How many draws of so many values to make at a time."""
    at_once = max(1, _MAX_VALUES // size)
    return [min(at_once, num_draws - start) for start in range(0, num_draws, at_once)]


def _take_middle(values: Floats) -> Interval:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return Interval(float(low), float(high))
