"""Measures that need all items at once, against scikit-learn and scipy, with intervals and paired tests."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from maskwright.evaluation.agreement import METRICS, Agreement
from maskwright.evaluation.statistics import Floats, bootstrap_any, compute_seed_interval, sign_flip_p_value


def draw(num_items: int, noise: float, seed: int = 0) -> tuple[Floats, Floats]:
    """Labels with ties, and answers that follow them."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 6, num_items).astype(float)
    return (labels + noise * generator.normal(size=num_items))[:, None], labels


def test_correlations_are_those_of_scipy() -> None:
    answers, labels = draw(50, noise=2.0)
    assert METRICS["pearson"](answers, labels)[0] == pytest.approx(stats.pearsonr(answers[:, 0], labels).statistic)
    assert METRICS["spearman"](answers, labels)[0] == pytest.approx(stats.spearmanr(answers[:, 0], labels).statistic)
    assert np.isnan(METRICS["pearson"](np.full((4, 1), 0.3), np.arange(4.0))[0])


def test_scores_of_classes_are_those_of_scikit_learn() -> None:
    generator = np.random.default_rng(1)
    labels = generator.integers(0, 2, 40).astype(float)
    answers = np.where(generator.random((40, 3)) < 0.8, labels[:, None], 1 - labels[:, None])
    expected = {
        "accuracy": metrics.accuracy_score,
        "f1": metrics.f1_score,
        "matthews": metrics.matthews_corrcoef,
    }
    for name, compute in expected.items():
        assert METRICS[name](answers, labels) == pytest.approx([compute(labels, one) for one in answers.T])
    assert METRICS["matthews"](np.ones((4, 1)), np.array([0.0, 1, 1, 0]))[0] == 0.0
    assert METRICS["f1"](np.zeros((2, 1)), np.zeros(2))[0] == 0.0


@pytest.mark.parametrize("name", ["pearson", "spearman"])
def test_an_interval_of_a_correlation_is_that_of_scipys_bootstrap(name: str) -> None:
    answers, labels = draw(80, noise=2.0)
    figure = Agreement(name, answers, labels).summarise("file", "pairs")
    compute = stats.pearsonr if name == "pearson" else stats.spearmanr
    expected = stats.bootstrap(
        (answers[:, 0], labels),
        lambda x, y: compute(x, y).statistic,
        paired=True,
        vectorized=False,
        n_resamples=500,
        method="percentile",
        rng=np.random.default_rng(5),
    ).confidence_interval
    assert (figure.n, figure.kind, figure.group) == (80, "file", "pairs")
    assert figure.low == pytest.approx(expected.low, abs=0.03)
    assert figure.high == pytest.approx(expected.high, abs=0.03)


@pytest.mark.parametrize("name", ["pearson", "spearman"])
def test_a_difference_of_correlations_is_paired_and_tested(name: str) -> None:
    good, labels = draw(120, noise=1.0)
    bad, _ = draw(120, noise=6.0, seed=0)
    own, other = Agreement(name, good, labels), Agreement(name, 10 * bad + 3, labels)
    line = own.compare(other, "file", "pairs")
    assert line.difference == pytest.approx(METRICS[name](good, labels)[0] - METRICS[name](bad, labels)[0])
    assert 0 < line.low < line.difference < line.high
    assert line.p_value < 0.001
    same = own.compare(own, "file", "pairs")
    assert (same.difference, same.low, same.high, same.p_value) == (0, 0, 0, 1)
    scaled = own.compare(Agreement(name, 10 * good + 3, labels), "file", "pairs")
    assert scaled.difference == pytest.approx(0, abs=1e-12)
    assert scaled.p_value > 0.01


def test_chance_is_not_found_significant_too_often() -> None:
    """Two models of the same quality: p-values below 5% come up about as rarely as they should."""
    p_values = []
    for seed in range(40):
        first, labels = draw(30, noise=3.0, seed=seed)
        second = labels[:, None] + 3.0 * np.random.default_rng(1_000 + seed).normal(size=(30, 1))
        p_values.append(
            Agreement("spearman", first, labels).compare(Agreement("spearman", second, labels), "", "").p_value
        )
    assert sum(p_value < 0.05 for p_value in p_values) <= 6
    assert sum(p_value < 0.5 for p_value in p_values) >= 10


def test_a_test_of_accuracy_by_swapping_is_the_one_by_signs() -> None:
    """Ten items that only the first answers right and four that only the second does."""
    labels, number = np.ones(40), np.arange(40)
    own = np.where(number < 30, 1.0, 0.0)[:, None]
    other = np.where((number < 20) | (number >= 36), 1.0, 0.0)[:, None]
    line = Agreement("accuracy", own, labels).compare(Agreement("accuracy", other, labels), "", "")
    assert line.difference == pytest.approx(6 / 40)
    assert sign_flip_p_value((own - other)[:, 0]) == pytest.approx(stats.binomtest(4, 14).pvalue, abs=0.02)
    assert line.p_value == pytest.approx(stats.binomtest(4, 14).pvalue, abs=0.03)


def test_a_constant_answer_leaves_nothing_to_test() -> None:
    labels = np.arange(6.0)
    line = Agreement("pearson", labels[:, None], labels).compare(Agreement("pearson", np.ones((6, 1)), labels), "", "")
    assert np.isnan(line.p_value)


def test_a_bootstrap_of_one_item_or_of_no_value_has_no_interval() -> None:
    assert np.isnan(bootstrap_any(lambda drawn: np.ones(len(drawn)), 1).low)
    assert np.isnan(bootstrap_any(lambda drawn: np.full(len(drawn), np.nan), 5).low)


def test_the_interval_over_seeds_is_students() -> None:
    values = np.array([0.61, 0.64, 0.60, 0.66, 0.63])
    low, high = stats.t.interval(0.95, 4, loc=values.mean(), scale=stats.sem(values))
    interval = compute_seed_interval(values)
    assert (interval.low, interval.high) == (pytest.approx(low, abs=1e-5), pytest.approx(high, abs=1e-5))
    assert np.isnan(compute_seed_interval(values[:1]).low)
