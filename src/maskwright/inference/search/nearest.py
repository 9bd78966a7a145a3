"""Exact search for the nearest vectors, block by block, so that the vectors may be larger than memory.

Q queries, N vectors, D width, K that are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
BLOCK_SCORES = 16_000_000
"""Scores that are held at a time."""
_QUERIES_AT_ONCE = 1_024


@dataclass(frozen=True)
class Nearest:
    """Best first; fewer than K where there are fewer vectors."""

    places: NDArray[np.int64]
    """(Q, K) numbers of vectors."""
    scores: Floats
    """(Q, K)"""


Score = Callable[[Floats, NDArray[np.generic]], Floats]
"""(Q, N) scores of queries (Q, D) with a block of N vectors, as they are stored."""


def score_floats(queries: Floats, block: NDArray[np.generic]) -> Floats:
    """Products, which are cosines of vectors of length 1."""
    return queries @ block.astype(np.float32, copy=False).T


def find_nearest(
    queries: Floats, parts: Sequence[NDArray[np.generic]], num_best: int, score: Score = score_floats
) -> Nearest:
    """The best of all parts together, whose vectors are numbered on from one part to the next; exact."""
    found = [
        _search(queries[start : start + _QUERIES_AT_ONCE], parts, num_best, score)
        for start in range(0, len(queries), _QUERIES_AT_ONCE)
    ]
    return Nearest(np.concatenate([one.places for one in found]), np.concatenate([one.scores for one in found]))


def _search(queries: Floats, parts: Iterable[NDArray[np.generic]], num_best: int, score: Score) -> Nearest:
    blocks = _cut(parts, max(1, BLOCK_SCORES // max(1, len(queries))))
    return merge_best(((start, score(queries, block)) for start, block in blocks), len(queries), num_best)


def merge_best(scored: Iterable[tuple[int, Floats]], num_queries: int, num_best: int) -> Nearest:
    """The best of blocks of scores (Q, N), each with the number of its first column."""
    best = Nearest(np.zeros((num_queries, 0), np.int64), np.zeros((num_queries, 0), np.float32))
    for start, scores in scored:
        chosen = take_best(scores, num_best)
        places = np.concatenate([best.places, chosen + start], axis=1)
        kept = np.concatenate([best.scores, np.take_along_axis(scores, chosen, 1)], axis=1)
        order = take_best(kept, num_best)
        best = Nearest(np.take_along_axis(places, order, 1), np.take_along_axis(kept, order, 1))
    return best


def take_best(scores: Floats, num_best: int) -> NDArray[np.int64]:
    """(Q, K) columns of the highest scores, best first, the first of equal ones first."""
    num_best = min(num_best, scores.shape[1])
    if num_best < scores.shape[1]:
        chosen = np.sort(np.argpartition(-scores, num_best - 1, axis=1)[:, :num_best], axis=1)
        lowest = np.take_along_axis(scores, chosen, 1).min(1, initial=np.inf)
        for row in np.flatnonzero((scores >= lowest[:, None]).sum(1) > num_best):  # equal ones are on both sides
            better, equal = np.flatnonzero(scores[row] > lowest[row]), np.flatnonzero(scores[row] == lowest[row])
            chosen[row] = np.sort(np.concatenate([better, equal[: num_best - len(better)]]))
    else:
        chosen = np.broadcast_to(np.arange(num_best), scores.shape)
    order = np.argsort(-np.take_along_axis(scores, chosen, 1), axis=1, kind="stable")
    return np.take_along_axis(chosen, order, 1).astype(np.int64, copy=False)


def _cut(parts: Iterable[NDArray[np.generic]], size: int) -> Iterator[tuple[int, NDArray[np.generic]]]:
    first = 0
    for part in parts:
        for start in range(0, len(part), size):
            yield first + start, part[start : start + size]
        first += len(part)
