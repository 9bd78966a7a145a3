"""A curve of any length in bounded memory: stretches of it with their lowest, highest and last point."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
MOST_STRETCHES = 2048
"""Kept of a curve; twice as many are joined in pairs."""
_LOWEST, _HIGHEST, _LAST = 0, 1, 2


class ThinnedCurve:
    """Points (x, y) in the order in which they come; no extreme value is ever lost, however many there are.

    A stretch is three points, its lowest, highest and last: S stretches are an array (S, 3, 2).
    """

    def __init__(self) -> None:
        self._stretches: Floats = np.empty((0, 3, 2))
        self._waiting: Floats = np.empty((0, 2))
        """Points behind the last whole stretch."""
        self._size = 1

    def add(self, xs: Floats, ys: Floats) -> None:
        waiting = np.concatenate([self._waiting, np.stack([xs, ys], axis=-1)])
        num_whole = len(waiting) // self._size * self._size
        self._waiting = waiting[num_whole:].copy()
        if num_whole:
            self._stretches = np.concatenate([self._stretches, _cut(waiting[:num_whole], self._size)])
        while len(self._stretches) >= 2 * MOST_STRETCHES:
            self._stretches, self._size = _join(self._stretches, 2), 2 * self._size

    def list_points(self, most: int, after: float | None = None) -> Floats:
        """About `most` points (P, 2) at the most; only what came after `after`, with the stretch around it."""
        stretches = self._stretches
        if len(self._waiting):
            stretches = np.concatenate([stretches, _cut(self._waiting, len(self._waiting))])
        if after is not None:
            stretches = stretches[stretches[:, _LAST, 0] > after]
        if len(stretches) == 0:
            return np.empty((0, 2))
        if len(stretches) > most or np.any(stretches[:, _LOWEST] != stretches[:, _HIGHEST]):
            stretches = _join(stretches, -(-2 * len(stretches) // most))
        extremes = stretches[:, :_LAST]
        order = np.argsort(extremes[:, :, 0], axis=1, kind="stable")
        points = np.take_along_axis(extremes, order[:, :, None], axis=1).reshape(-1, 2)
        points = np.concatenate([points, stretches[-1:, _LAST]])
        is_new = np.ones(len(points), bool)
        is_new[1:] = np.any(points[1:] != points[:-1], axis=1)
        return points[is_new]


def thin_points(points: Floats, most: int) -> Floats:
    """About `most` of the points (P, 2), the extreme ones among them."""
    if len(points) <= most:
        return points
    curve = ThinnedCurve()
    curve.add(points[:, 0], points[:, 1])
    return curve.list_points(most)


def _cut(points: Floats, size: int) -> Floats:
    """Points (P, 2) to stretches of so many."""
    groups = points.reshape(-1, size, 2)
    each, ys = np.arange(len(groups)), groups[:, :, 1]
    return np.stack([groups[each, ys.argmin(axis=1)], groups[each, ys.argmax(axis=1)], groups[:, -1]], axis=1)


def _join(stretches: Floats, size: int) -> Floats:
    """So many neighbours at a time become one; the last may be fewer."""
    num_whole = len(stretches) // size * size
    joined = _join_equal(stretches[:num_whole].reshape(-1, size, 3, 2))
    if num_whole == len(stretches):
        return joined
    return np.concatenate([joined, _join_equal(stretches[None, num_whole:])])


def _join_equal(groups: Floats) -> Floats:
    """(G, N, 3, 2) to (G, 3, 2)."""
    if groups.size == 0:
        return np.empty((0, 3, 2))
    each = np.arange(len(groups))
    lowest = groups[each, groups[:, :, _LOWEST, 1].argmin(axis=1), _LOWEST]
    highest = groups[each, groups[:, :, _HIGHEST, 1].argmax(axis=1), _HIGHEST]
    return np.stack([lowest, highest, groups[:, -1, _LAST]], axis=1)
