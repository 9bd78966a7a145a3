"""Texts longer than the model: windows over their tokens, and what windows say put together again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
_OVERLAP_SHARE = 4
"""Windows share a quarter of their tokens with the next, so that each token is seen with its neighbours."""


def find_windows(length: int, size: int) -> list[tuple[int, int]]:
    """(start, stop) of windows of at most `size` over `length` tokens; the last may be shorter."""
    if length <= size:
        return [(0, length)]
    overlap = size // _OVERLAP_SHARE
    starts = range(0, length - overlap, size - overlap)
    return [(start, min(start + size, length)) for start in starts]


def window_around(place: int, length: int, size: int) -> tuple[int, int]:
    """(start, stop) of `size` tokens with the place in the middle, as far as the text's ends allow."""
    start = max(0, min(place - size // 2, length - size))
    return start, min(start + size, length)


def average_windows(vectors: Sequence[Floats], num_tokens: Sequence[int]) -> Floats:
    """The mean of one vector to a window, each weighted by its window's number of tokens."""
    if len(vectors) == 1:
        return vectors[0]
    return np.average(np.stack(vectors), axis=0, weights=num_tokens).astype(np.float32)


def join_windows(states: Sequence[Floats], windows: Sequence[tuple[int, int]]) -> Floats:
    """One vector to a token of the whole text, from windows with a special token on each side.

    A token that two windows hold is taken from the one in which it is farther from the edge; the special tokens are
    those of the first and the last window.
    """
    parts = [states[0][:1]]
    for number, (state, (start, stop)) in enumerate(zip(states, windows, strict=True)):
        begin = start if number == 0 else (start + windows[number - 1][1]) // 2
        end = stop if number == len(windows) - 1 else (windows[number + 1][0] + stop) // 2
        parts.append(state[1 + begin - start : 1 + end - start])
    return np.concatenate([*parts, states[-1][-1:]])
