"""Windows over texts that are longer than the model, and their answers put together."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskwright.inference.texts import average_windows, find_windows, join_windows, window_around


@given(st.integers(0, 500), st.integers(1, 60))
def test_windows_cover_every_token_and_overlap_by_a_quarter(length: int, size: int) -> None:
    windows = find_windows(length, size)
    assert windows[0][0] == 0
    assert windows[-1][1] == length
    assert all(stop - start == size for start, stop in windows[:-1])
    for (_, stop), (start, _) in pairwise(windows):
        assert stop - start == size // 4
    if len(windows) > 1:
        assert length > size
        assert windows[-1][1] > windows[-2][1]


@given(st.integers(1, 300), st.integers(1, 60), st.data())
def test_a_window_around_a_place_holds_it_and_as_much_as_it_can(length: int, size: int, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, length - 1))
    start, stop = window_around(place, length, size)
    assert 0 <= start <= place < stop <= length
    assert stop - start == min(size, length)


def test_a_place_in_the_middle_of_a_text_is_in_the_middle_of_its_window() -> None:
    assert window_around(50, 100, 11) == (45, 56)
    assert window_around(2, 100, 11) == (0, 11)
    assert window_around(99, 100, 11) == (89, 100)


def test_windows_count_by_their_tokens() -> None:
    vectors = [np.array([1.0, 0.0], np.float32), np.array([0.0, 4.0], np.float32)]
    mean = average_windows(vectors, [3, 1])
    assert mean.tolist() == [0.75, 1.0]
    assert mean.dtype == np.float32


@pytest.mark.parametrize("length", [5, 8, 9, 23])
def test_joined_windows_have_each_token_once_from_the_middle_of_a_window(length: int) -> None:
    windows = find_windows(length, 8)
    states = [
        np.array([[-1, number], *([token, number] for token in range(start, stop)), [-2, number]], np.float32)
        for number, (start, stop) in enumerate(windows)
    ]
    joined = join_windows(states, windows)
    assert joined[:, 0].tolist() == [-1, *range(length), -2]
    for token, number in joined[1:-1].astype(int).tolist():
        distances = [min(token - start, stop - 1 - token) for start, stop in windows if start <= token < stop]
        start, stop = windows[number]
        assert min(token - start, stop - 1 - token) == max(distances)
