"""Read batches from whatever holds them: a loader with epochs, a list, a `DataLoader`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from maskwright.batch import PackedBatch, as_packed

Batches = Iterable[Any]
"""A loader with `epoch(n, start_batch)`, or anything that gives batches each time it is iterated."""
Item = TypeVar("Item")


def iterate_batches(batches: Batches, epoch: int = 0, start_batch: int = 0) -> Iterator[PackedBatch]:
    """The packed batches of one epoch, from `start_batch` on."""
    read_epoch: Any = getattr(batches, "epoch", None)
    if callable(read_epoch):
        yield from read_epoch(epoch, start_batch)
    else:
        yield from map(as_packed, islice(iter(batches), start_batch, None))


def count_batches(batches: Any) -> int | None:
    """Batches in an epoch, or None where that is not known."""
    try:
        return len(batches)
    except TypeError:
        return None


def mark_last(items: Iterable[Item]) -> Iterator[tuple[Item, bool]]:
    """Each item, and whether it is the last."""
    iterator = iter(items)
    for held in iterator:
        for item in iterator:
            yield held, False
            held = item
        yield held, True
