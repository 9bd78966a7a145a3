"""Exact search in blocks, against sorting all scores."""

from __future__ import annotations

import numpy as np
import pytest

from maskwright.inference.search import nearest
from maskwright.inference.search.nearest import find_nearest, take_best


@pytest.mark.parametrize("num_best", [1, 7, 100, 1000])
def test_blocks_of_several_parts_give_what_sorting_gives(monkeypatch: pytest.MonkeyPatch, num_best: int) -> None:
    monkeypatch.setattr(nearest, "BLOCK_SCORES", 50)
    monkeypatch.setattr(nearest, "_QUERIES_AT_ONCE", 4)
    rng = np.random.default_rng(0)
    # Whole numbers, so that scores tie and products are exact.
    vectors = rng.integers(-3, 4, (90, 5)).astype(np.float32)
    queries = rng.integers(-3, 4, (11, 5)).astype(np.float32)
    found = find_nearest(queries, [vectors[:40], vectors[40:41], vectors[41:]], num_best)
    scores = queries @ vectors.T
    kept = min(num_best, 90)
    assert found.scores.tolist() == np.sort(scores, axis=1)[:, ::-1][:, :kept].tolist()
    assert np.take_along_axis(scores, found.places, 1).tolist() == found.scores.tolist()
    assert found.places.tolist() == np.argsort(-scores, axis=1, kind="stable")[:, :kept].tolist()


def test_the_first_of_equal_scores_comes_first() -> None:
    assert take_best(np.asarray([[1.0, 2.0, 2.0, 1.0]], np.float32), 3).tolist() == [[1, 2, 0]]
    # equal scores at the cut, of which a partition keeps any
    scores = np.random.default_rng(0).integers(0, 3, (20, 200)).astype(np.float32)
    assert take_best(scores, 90).tolist() == np.argsort(-scores, axis=1, kind="stable")[:, :90].tolist()
