"""The order of an epoch: every row once, any stretch at any time, weights kept."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskwright.data.loader import EpochOrder

row_counts_lists = st.lists(st.integers(1, 30), min_size=1, max_size=12)


def build(row_counts: list[int], weights: list[float] | None = None, **options: object) -> EpochOrder:
    settings = {"seed": 0, "epoch": 0, "shuffle": True, "group_size": 3, **options}
    return EpochOrder(row_counts, weights or [1.0] * len(row_counts), **settings)  # type: ignore[arg-type]


def pairs(order: EpochOrder, start: int = 0, stop: int | None = None) -> list[tuple[int, int]]:
    shards, rows, _ = order.locate(start, order.num_rows if stop is None else stop)
    return list(zip(shards.tolist(), rows.tolist(), strict=True))


@settings(max_examples=50, deadline=None)
@given(row_counts_lists, st.integers(0, 100), st.integers(0, 5), st.booleans())
def test_every_row_of_every_shard_comes_exactly_once(row_counts, seed, epoch, shuffle):
    order = build(row_counts, seed=seed, epoch=epoch, shuffle=shuffle)
    expected = [(shard, row) for shard, count in enumerate(row_counts) for row in range(count)]
    assert sorted(pairs(order)) == expected
    assert order.num_rows == sum(row_counts)


@settings(max_examples=50, deadline=None)
@given(row_counts_lists, st.data())
def test_any_stretch_is_found_without_those_before_it(row_counts, data):
    order = build(row_counts)
    start = data.draw(st.integers(0, order.num_rows))
    stop = data.draw(st.integers(start, order.num_rows + 5))
    assert pairs(build(row_counts), start, stop) == pairs(order)[start:stop]


def test_epochs_and_seeds_differ_and_repeat():
    counts = [40, 30, 50, 20]
    first = pairs(build(counts))
    assert pairs(build(counts)) == first
    assert pairs(build(counts, epoch=1)) != first
    assert pairs(build(counts, seed=1)) != first


def test_without_shuffling_rows_come_in_order():
    assert pairs(build([2, 3], shuffle=False)) == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]


def test_a_group_mixes_its_shards():
    shards, _, _ = build([200, 200, 200], group_size=3).locate(0, 60)
    assert set(shards.tolist()) == {0, 1, 2}


@pytest.mark.parametrize("weight", [0.25, 0.5, 1.0, 1.5, 3.0])
def test_a_weight_is_how_often_rows_are_seen(weight):
    order = build([80, 40], [weight, 1.0])
    seen = Counter(pairs(order))
    of_first = [seen[(0, row)] for row in range(80)]
    assert sum(of_first) == round(80 * weight)
    assert set(of_first) <= {int(weight), int(np.ceil(weight))}
    assert all(seen[(1, row)] == 1 for row in range(40))


def test_a_partial_weight_shows_other_rows_in_another_epoch():
    first, second = ({row for shard, row in pairs(build([100], [0.3], epoch=epoch))} for epoch in (0, 1))
    assert len(first) == len(second) == 30
    assert first != second
