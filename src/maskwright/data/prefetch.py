"""Build items ahead of their use, in a background thread."""

from __future__ import annotations

import atexit
import queue
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def prefetch(items: Iterable[Item], depth: int = 4) -> Iterator[Item]:
    """The same items in the same order; an error in the thread is raised where the item would have come.

    The thread ends when the items do or when the consumer stops iterating.
    """
    ready: queue.Queue[tuple[str, Item | BaseException | None]] = queue.Queue(maxsize=depth)
    stopped = threading.Event()

    def put(kind: str, value: Item | BaseException | None = None) -> bool:
        while not stopped.is_set():
            try:
                ready.put((kind, value), timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def produce() -> None:
        try:
            for item in items:
                if not put("item", item):
                    return
            put("end")
        except BaseException as error:  # handed to the consumer, which raises it
            put("error", error)

    def consume() -> Iterator[Item]:
        thread = threading.Thread(target=produce, daemon=True)

        def stop() -> None:
            stopped.set()
            thread.join()

        # A thread still inside native code while the interpreter shuts down would abort the process.
        atexit.register(stop)
        thread.start()
        try:
            while True:
                kind, value = ready.get()
                if kind == "end":
                    return
                if kind == "error":
                    assert isinstance(value, BaseException)
                    raise value
                yield value  # type: ignore[misc]
        finally:
            stop()
            atexit.unregister(stop)

    return consume()
