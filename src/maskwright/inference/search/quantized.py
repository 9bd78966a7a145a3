"""How vectors are stored and compared: as they are, a byte a number, or a bit a number with those bytes to rescore.

N vectors, D width, Q queries, K that are kept. All vectors have length 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from maskwright.inference.search.nearest import Floats, Nearest, find_nearest, score_floats, take_best

FLOAT, INT8, BINARY = "float", "int8", "binary"
STORES = (FLOAT, INT8, BINARY)
VECTORS, BITS = "vectors", "bits"
"""Names of arrays."""
_LARGEST = 127
_SCALE_BYTES = 4
_RESCORED, _FEWEST_RESCORED = 10, 100
"""Candidates by bits for each result, and for all together at least, which are then compared by bytes."""

Array = NDArray[np.generic]


def store_vectors(vectors: Floats, store: str) -> dict[str, Array]:
    """The arrays that are kept of vectors (N, D)."""
    if store == FLOAT:
        return {VECTORS: vectors}
    codes: dict[str, Array] = {VECTORS: to_bytes(vectors)}
    return codes if store == INT8 else {**codes, BITS: np.packbits(vectors > 0, axis=1)}


def to_bytes(vectors: Floats) -> NDArray[np.int8]:
    """(N, D + 4): each number as a share of the vector's largest, rounded to a byte; then that largest, float32."""
    scales = np.maximum(np.abs(vectors).max(axis=1, keepdims=True), np.float32(1e-12)) / _LARGEST
    codes = np.rint(vectors / scales).astype(np.int8)
    return np.concatenate([codes, np.ascontiguousarray(scales, np.float32).view(np.int8)], axis=1)


def score_bytes(queries: Floats, block: Array) -> Floats:
    """(Q, N) products of queries with vectors that `to_bytes` stored."""
    codes = block[:, :-_SCALE_BYTES].astype(np.float32)
    scales = np.ascontiguousarray(block[:, -_SCALE_BYTES:]).view(np.float32)[:, 0]
    return (queries @ codes.T) * scales


def score_bits(queries: Floats, block: Array) -> Floats:
    """(Q, N) on how many more signs queries and vectors agree than not."""
    asked = np.packbits(queries > 0, axis=1)
    width, bits = queries.shape[1], np.ascontiguousarray(block)
    if bits.shape[1] % 8 == 0:
        asked, bits = asked.view(np.uint64), bits.view(np.uint64)
    differing = np.stack([np.bitwise_count(bits ^ row).sum(axis=1, dtype=np.int32) for row in asked])
    return (width - 2 * differing).astype(np.float32)


def find_stored(queries: Floats, arrays: Sequence[Mapping[str, Array]], store: str, num_best: int) -> Nearest:
    """The nearest of vectors that `store_vectors` stored, part by part; exact but for `binary`."""
    vectors = [one[VECTORS] for one in arrays]
    if store != BINARY:
        return find_nearest(queries, vectors, num_best, score_floats if store == FLOAT else score_bytes)
    num_candidates = max(_RESCORED * num_best, _FEWEST_RESCORED)
    candidates = find_nearest(queries, [one[BITS] for one in arrays], num_candidates, score_bits).places
    starts = np.cumsum([0, *(len(one) for one in vectors)])
    scores = np.stack(
        [
            score_bytes(row[None], _gather(vectors, starts, asked))[0]
            for row, asked in zip(queries, candidates, strict=True)
        ]
    )
    best = take_best(scores, num_best)
    return Nearest(np.take_along_axis(candidates, best, 1), np.take_along_axis(scores, best, 1))


def _gather(parts: Sequence[Array], starts: NDArray[np.int64], places: NDArray[np.int64]) -> Array:
    """(K, ...) rows of the parts together."""
    owners = np.searchsorted(starts, places, side="right") - 1
    return np.stack([parts[part][place - starts[part]] for part, place in zip(owners, places, strict=True)])
