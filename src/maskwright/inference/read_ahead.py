"""Read an iterator in a thread, a few items ahead, so that preparing them and computing go on at the same time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import TypeVar

ItemT = TypeVar("ItemT")
_PATIENCE_S = 0.1
"""How long a reader that was given up may take to notice it."""


@dataclass(frozen=True)
class _End:
    error: BaseException | None = None


def read_ahead(items: Iterable[ItemT], num_ahead: int) -> Iterator[ItemT]:
    """The same items; an error in the thread is raised here, in its place."""
    queue: Queue[ItemT | _End] = Queue(num_ahead)
    is_given_up = Event()

    def put(item: ItemT | _End) -> None:
        while not is_given_up.is_set():
            try:
                queue.put(item, timeout=_PATIENCE_S)
            except Full:
                continue
            return

    def read() -> None:
        try:
            for item in items:
                put(item)
                if is_given_up.is_set():
                    return
        except BaseException as error:  # whatever it is, the other thread raises it
            put(_End(error))
        else:
            put(_End())

    Thread(target=read, name="read-ahead", daemon=True).start()
    try:
        while True:
            item = queue.get()
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item
    finally:
        is_given_up.set()
        _drop(queue)


def _drop(queue: Queue[ItemT]) -> None:
    try:
        while True:
            queue.get_nowait()
    except Empty:
        return
