from __future__ import annotations

import numpy as np
import pytest

from maskwright.pictures.thinning import MOST_STRETCHES, ThinnedCurve, thin_points


def test_few_points_are_kept_as_they_are() -> None:
    curve = ThinnedCurve()
    curve.add(np.array([1.0, 2.0, 3.0]), np.array([5.0, 1.0, 4.0]))
    assert curve.list_points(100).tolist() == [[1, 5], [2, 1], [3, 4]]


@pytest.mark.parametrize("chunk", [1, 7, 1_000, 50_000])
def test_extremes_and_the_last_point_survive_however_the_points_come(chunk: int) -> None:
    num_points = 50_000 if chunk > 1 else 3 * MOST_STRETCHES
    xs = np.arange(num_points, dtype=np.float64)
    ys = np.sin(xs / 900)
    ys[num_points // 3], ys[num_points // 2] = 40.0, -30.0
    curve = ThinnedCurve()
    for start in range(0, num_points, chunk):
        curve.add(xs[start : start + chunk], ys[start : start + chunk])
    points = curve.list_points(200)
    assert len(points) <= 200 + 1
    assert [num_points // 3, 40.0] in points.tolist()
    assert [num_points // 2, -30.0] in points.tolist()
    assert points[-1].tolist() == [xs[-1], ys[-1]]
    assert (np.diff(points[:, 0]) > 0).all()


def test_memory_is_bounded() -> None:
    curve = ThinnedCurve()
    for start in range(0, 400_000, 20_000):
        xs = np.arange(start, start + 20_000, dtype=np.float64)
        curve.add(xs, xs)
    assert len(curve._stretches) < 2 * MOST_STRETCHES
    assert len(curve._waiting) < 400_000 // MOST_STRETCHES


def test_only_what_is_new_comes_after_a_step() -> None:
    curve = ThinnedCurve()
    curve.add(np.arange(10.0), np.arange(10.0))
    assert curve.list_points(100, after=7)[:, 0].tolist() == [8, 9]
    assert len(curve.list_points(100, after=9)) == 0


def test_nothing_is_thinned_to_nothing() -> None:
    assert len(ThinnedCurve().list_points(10)) == 0
    assert thin_points(np.array([[1.0, 2.0]]), 10).tolist() == [[1, 2]]
