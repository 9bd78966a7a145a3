"""Classes by the nearest neighbors of a vector. n vectors, D width, C classes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from maskwright.errors import InputError

_CHUNK = 1_024
_NEARNESS = 1e-3
"""What nearness counts against the number of neighbors: it decides where classes have as many."""

Vectors = NDArray[np.float32]
Classes = NDArray[np.int64]


def predict_by_neighbors(
    vectors: Vectors, known: Vectors, classes: Classes, num_neighbors: int, leaves_one_out: bool
) -> Classes:
    """The class that most of the nearest `known` vectors have, by cosine; all vectors have length 1.

    With `leaves_one_out` the vectors are the known ones, and none is its own neighbor.
    """
    num_others = len(known) - leaves_one_out
    if num_neighbors > num_others:
        raise InputError(f"{num_neighbors} neighbors are asked for, there are {num_others} texts; lower --neighbors")
    answers = [
        _vote(vectors[start : start + _CHUNK] @ known.T, classes, num_neighbors, start if leaves_one_out else None)
        for start in range(0, len(vectors), _CHUNK)
    ]
    return np.concatenate(answers)


def _vote(cosines: NDArray[np.float32], classes: Classes, num_neighbors: int, first: int | None) -> Classes:
    rows = np.arange(len(cosines))
    if first is not None:
        cosines[rows, first + rows] = -np.inf
    nearest = np.argpartition(-cosines, num_neighbors - 1, axis=1)[:, :num_neighbors]
    weights = 1.0 + _NEARNESS / num_neighbors * np.take_along_axis(cosines, nearest, axis=1)
    votes = np.zeros((len(cosines), int(classes.max()) + 1))
    np.add.at(votes, (rows[:, None], classes[nearest]), weights)
    return votes.argmax(axis=1)
