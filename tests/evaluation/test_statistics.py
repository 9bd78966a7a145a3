from __future__ import annotations

import math

import numpy as np
import pytest

from maskwright.evaluation.statistics import (
    NUM_FLIPS,
    bootstrap_difference,
    bootstrap_mean,
    compute_mean,
    sign_flip_p_value,
)
from tolerances import sampling


def draw(num_items: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(3.0, 2.0, num_items)


def test_the_mean_is_that_of_all_counted_things_not_of_items() -> None:
    assert compute_mean(np.array([1.0, 9.0]), np.array([1.0, 3.0])) == 2.5


def test_the_interval_of_a_mean_is_the_textbook_one() -> None:
    values = draw(400)
    interval = bootstrap_mean(values, np.ones(400))
    half_width = 1.96 * values.std() / 20
    assert interval.low == pytest.approx(values.mean() - half_width, abs=0.03)
    assert interval.high == pytest.approx(values.mean() + half_width, abs=0.03)


def test_the_interval_of_a_ratio_draws_sums_and_counts_together() -> None:
    counts = np.arange(1.0, 101.0)
    interval = bootstrap_mean(2 * counts, counts)
    assert (interval.low, interval.high) == pytest.approx((2.0, 2.0))


def test_the_interval_of_a_difference_is_that_of_paired_differences() -> None:
    first = draw(200)
    shared = (first, np.ones(200)), (first - 0.5, np.ones(200))
    interval = bootstrap_difference(*shared)
    assert (interval.low, interval.high) == pytest.approx((0.5, 0.5))


def test_the_same_items_give_the_same_interval() -> None:
    assert bootstrap_mean(draw(50), np.ones(50)) == bootstrap_mean(draw(50), np.ones(50))
    assert bootstrap_mean(draw(50), np.ones(50)) != bootstrap_mean(draw(50, seed=2), np.ones(50))


def test_one_item_has_no_interval() -> None:
    interval = bootstrap_mean(np.array([4.0]), np.ones(1))
    assert math.isnan(interval.low)
    assert math.isnan(interval.high)


@pytest.mark.parametrize(
    ("differences", "p_value"),
    [
        ([1.0] * 10, 2 / 1024),
        ([1.0, 2.0, 3.0], 2 / 8),
        ([3.0, -1.0], 1.0),
        ([5.0, 3.0, -1.0], 4 / 8),
        ([0.0, 0.0], 1.0),
        ([1.0] * 10 + [0.0] * 500, 2 / 1024),
        ([-0.1] * 6, 2 / 64),
    ],
)
def test_few_differences_are_tested_exactly(differences: list[float], p_value: float) -> None:
    assert sign_flip_p_value(np.array(differences)) == pytest.approx(p_value)


def test_right_and_wrong_answers_agree_with_the_binomial_test() -> None:
    scipy_stats = pytest.importorskip("scipy.stats")
    for num_better, num_worse in ((15, 5), (60, 45), (20, 20)):
        differences = np.array([1.0] * num_better + [-1.0] * num_worse + [0.0] * 30)
        exact = scipy_stats.binomtest(num_better, num_better + num_worse).pvalue
        assert sign_flip_p_value(differences) == pytest.approx(exact, abs=sampling(exact, NUM_FLIPS) + 1 / NUM_FLIPS)


def test_real_valued_differences_agree_with_another_permutation_test() -> None:
    scipy_stats = pytest.importorskip("scipy.stats")
    differences = np.random.default_rng(3).normal(0.25, 1.0, 60)
    theirs = scipy_stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=9999, rng=np.random.default_rng(0)
    ).pvalue
    assert 0.01 < theirs < 0.5
    both_are_drawn = 2 * sampling(theirs, NUM_FLIPS)
    assert sign_flip_p_value(differences) == pytest.approx(theirs, abs=both_are_drawn)


def test_a_drawn_p_value_is_never_zero() -> None:
    assert sign_flip_p_value(np.ones(1000)) == pytest.approx(1 / (1 + NUM_FLIPS))
    assert sign_flip_p_value(np.ones(1000)) == sign_flip_p_value(-np.ones(1000))
