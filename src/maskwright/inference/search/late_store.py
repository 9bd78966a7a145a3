"""Vectors of the tokens of documents, stored in 16 bits or as a byte a number, and exact search by best matches.

Q queries of L tokens, N documents, T tokens of all of them, C numbers of a vector. All vectors have length 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from maskwright.inference.search.nearest import Floats, Nearest, merge_best, score_floats
from maskwright.inference.search.quantized import INT8, VECTORS, Array, score_bytes, to_bytes

BOUNDS = "bounds"
"""(N + 1,) where the tokens of each document begin."""
_PRODUCTS = 16_000_000
"""That are held at a time."""


def store_tokens(vectors: Sequence[Floats], store: str) -> dict[str, Array]:
    """The arrays that are kept of documents, each (tokens, C)."""
    whole = np.concatenate(vectors)
    bounds = np.cumsum([0, *map(len, vectors)], dtype=np.int64)
    return {VECTORS: to_bytes(whole) if store == INT8 else whole.astype(np.float16), BOUNDS: bounds}


def holds_tokens(arrays: Mapping[str, Array], num_documents: int) -> bool:
    """Whether the arrays of a part fit each other; every document has a token."""
    if set(arrays) != {VECTORS, BOUNDS}:
        return False
    bounds, vectors = arrays[BOUNDS].astype(np.int64), arrays[VECTORS]
    is_ascending = bounds.shape == (num_documents + 1,) and bounds[0] == 0 and (np.diff(bounds) > 0).all()
    return bool(is_ascending and vectors.ndim == 2 and bounds[-1] == len(vectors))


def score_tokens(queries: Sequence[Floats], arrays: Mapping[str, Array]) -> Floats:
    """(Q, N) sums over a query's tokens of their largest product with a token of a document."""
    vectors, bounds = arrays[VECTORS], np.asarray(arrays[BOUNDS])
    score = score_bytes if vectors.dtype == np.int8 else score_floats
    ends = np.cumsum([len(query) for query in queries])
    asked, firsts = np.concatenate(queries), np.concatenate([[0], ends[:-1]])
    scores = np.empty((len(queries), len(bounds) - 1), np.float32)
    for start, stop in _cut(bounds, max(1, _PRODUCTS // len(asked))):
        products = score(asked, vectors[bounds[start] : bounds[stop]])
        best = np.maximum.reduceat(products, bounds[start:stop] - bounds[start], axis=1)
        scores[:, start:stop] = np.add.reduceat(best, firsts, axis=0)
    return scores


def match(query: Floats, document: Floats) -> float:
    """The same of one query and one document as they are, (L, C) and (tokens, C)."""
    return float((query @ document.T).max(axis=1).sum())


def _cut(bounds: Array, most_tokens: int) -> Iterator[tuple[int, int]]:
    """Documents that follow each other, as many as have so many tokens, or one."""
    start, last = 0, len(bounds) - 1
    while start < last:
        stop = int(np.searchsorted(bounds, bounds[start] + most_tokens, side="right")) - 1
        stop = min(max(stop, start + 1), last)
        yield start, stop
        start = stop


_QUERIES_AT_ONCE = 32


def find_tokens(queries: Sequence[Floats], parts: Sequence[Mapping[str, Array]], num_best: int) -> Nearest:
    """The best of parts; exact over vectors as they are stored."""

    def score(asked: Sequence[Floats]) -> Iterator[tuple[int, Floats]]:
        first = 0
        for arrays in parts:
            yield first, score_tokens(asked, arrays)
            first += len(arrays[BOUNDS]) - 1

    found = [
        merge_best(score(asked), len(asked), num_best)
        for asked in (queries[start : start + _QUERIES_AT_ONCE] for start in range(0, len(queries), _QUERIES_AT_ONCE))
    ]
    return Nearest(np.concatenate([one.places for one in found]), np.concatenate([one.scores for one in found]))
