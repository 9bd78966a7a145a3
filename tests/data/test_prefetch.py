from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from maskwright.data.loader import prefetch


def test_items_come_in_their_order() -> None:
    assert list(prefetch(range(100), depth=3)) == list(range(100))
    assert list(prefetch([])) == []


def test_items_are_built_ahead_up_to_the_depth() -> None:
    reached = threading.Event()
    built = []

    def items() -> Iterator[int]:
        for number in range(100):
            built.append(number)
            if number == 4:
                reached.set()
            yield number

    iterator = prefetch(items(), depth=3)
    assert next(iterator) == 0
    assert reached.wait(timeout=20)
    assert len(built) <= 5
    iterator.close()  # type: ignore[attr-defined]


def test_an_error_is_raised_where_its_item_would_have_come() -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise KeyError("third")

    iterator = prefetch(items())
    assert [next(iterator), next(iterator)] == [1, 2]
    with pytest.raises(KeyError, match="third"):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


@pytest.mark.parametrize("how", ["close", "forget"])
def test_the_thread_ends_when_the_iterator_is_abandoned(how: str) -> None:
    builders: list[threading.Thread] = []

    def items() -> Iterator[int]:
        builders.append(threading.current_thread())
        number = 0
        while True:
            yield number
            number += 1

    iterator = prefetch(items(), depth=2)
    assert next(iterator) == 0
    assert builders[0] is not threading.current_thread()
    if how == "close":
        iterator.close()  # type: ignore[attr-defined]
    else:
        del iterator
    builders[0].join(timeout=20)
    assert not builders[0].is_alive()
