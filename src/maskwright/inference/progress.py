"""How far a long prediction is: a live line in a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.status import Status

Value = TypeVar("Value")
_PLAIN_INTERVAL_S = 10.0
_LIVE_INTERVAL_S = 0.2


def show_progress(values: Iterable[Value], console: Console, noun: str) -> Iterator[Value]:
    """The values as they are, counted on the console, with a closing line."""
    begin = last = time.monotonic()
    count = 0
    status = Status("starting", console=console) if console.is_terminal else None
    interval = _LIVE_INTERVAL_S if status else _PLAIN_INTERVAL_S
    if status:
        status.start()
    try:
        for value in values:
            count += 1
            yield value
            now = time.monotonic()
            if now - last >= interval:
                last = now
                line = _describe(count, now - begin, noun)
                if status:
                    status.update(line)
                else:
                    _print(console, line)
    finally:
        if status:
            status.stop()
    _print(console, _describe(count, time.monotonic() - begin, noun))


def _describe(count: int, elapsed_s: float, noun: str) -> str:
    return f"{count:,} {noun}s in {elapsed_s:,.1f} s, {count / max(elapsed_s, 1e-9):,.0f} a second"


def _print(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)
