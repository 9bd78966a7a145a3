from __future__ import annotations

import json
import math

import numpy as np
import pytest

from maskwright.evaluation.figures import Measure, compute_differences, compute_figures, to_json
from maskwright.evaluation.statistics import sign_flip_p_value

POINTS = np.array([1.0, 0.0, 0.5, 1.0])
GROUPS = {
    ("all", "all"): np.array([True] * 4),
    ("kind", "first"): np.array([True, True, False, False]),
    ("kind", "last"): np.array([False, False, False, True]),
}


def test_every_group_has_its_number_mean_and_interval() -> None:
    everything, first, last = compute_figures([Measure.of_values("accuracy", POINTS)], GROUPS)
    assert (everything.n, everything.mean) == (4, 0.625)
    assert (first.group, first.n, first.mean, first.low, first.high) == ("first", 2, 0.5, 0.0, 1.0)
    assert (last.n, last.mean) == (1, 1.0)
    assert everything.low < 0.625 < everything.high


def test_an_interval_that_is_not_there_is_null_in_json() -> None:
    last = compute_figures([Measure.of_values("accuracy", POINTS)], GROUPS)[-1]
    assert math.isnan(last.low)
    assert json.loads(json.dumps(to_json(last), allow_nan=False))["low"] is None


def test_a_perplexity_is_per_token_and_its_interval_is_turned_with_it() -> None:
    sums, counts = np.array([-10.0, -2.0, -9.0]), np.array([5.0, 2.0, 3.0])
    plain, perplexity = compute_figures(
        [Measure("mean", sums, counts), Measure("perplexity", sums, counts, is_perplexity=True)],
        {("all", "all"): np.array([True] * 3)},
    )
    assert perplexity.mean == pytest.approx(math.exp(2.1))
    assert (perplexity.low, perplexity.high) == pytest.approx((math.exp(-plain.high), math.exp(-plain.low)))
    assert perplexity.low < perplexity.mean < perplexity.high


def test_differences_are_of_the_same_items_and_leave_perplexities_out() -> None:
    other = np.array([0.0, 0.0, 0.5, 0.0])
    measures = [
        [Measure.of_values("accuracy", points), Measure("perplexity", points, np.ones(4), is_perplexity=True)]
        for points in (POINTS, other)
    ]
    everything, first, last = compute_differences(*measures, GROUPS)
    assert (everything.measure, everything.difference) == ("accuracy", 0.5)
    assert everything.p_value == sign_flip_p_value(POINTS - other) == 0.5
    assert (first.difference, first.n) == (0.5, 2)
    assert math.isnan(last.low)
