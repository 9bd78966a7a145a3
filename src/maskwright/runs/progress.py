"""Progress of long work on the console: what is done, how fast, and how long the rest takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from rich.console import Console
from rich.status import Status

from maskwright.terminal import say

Value = TypeVar("Value")
_PLAIN_INTERVAL_S = 10.0
_LIVE_INTERVAL_S = 0.2
_MINUTE_S, _HOUR_S = 60, 3600


@dataclass(frozen=True)
class Reading:
    """What is known of a long prediction beside the number of answers."""

    num_tokens: int = 0
    share: float | None = None
    """Of all there is to answer; None: nobody knows."""


def show_progress(
    values: Iterable[Value],
    console: Console,
    noun: str,
    read: Callable[[], Reading] = Reading,
    num_before: int = 0,
) -> Iterator[Value]:
    """The values as they are, counted on the console, with a closing line; `num_before` were there already.

    On a terminal that is a line that changes, in a file now and then a new one.
    """
    begin = last = time.monotonic()
    first_share: float | None = None
    count = 0
    status = Status("starting", console=console) if console.is_terminal else None
    interval = _LIVE_INTERVAL_S if status else _PLAIN_INTERVAL_S
    if status:
        status.start()
    try:
        for value in values:
            count += 1
            yield value
            now, reading = time.monotonic(), read()
            if first_share is None:
                first_share = reading.share if num_before else 0.0
            if now - last >= interval:
                last = now
                line = _describe_speed(count, num_before, now - begin, noun, reading)
                line += _describe_rest(reading.share, first_share, now - begin)
                if status:
                    status.update(line)
                else:
                    say(console, line)
    finally:
        if status:
            status.stop()
    say(console, _describe_speed(count, num_before, time.monotonic() - begin, noun, read()))


def _describe_speed(count: int, num_before: int, elapsed_s: float, noun: str, reading: Reading) -> str:
    speed = f"{count / max(elapsed_s, 1e-9):,.0f} a second"
    if reading.num_tokens:
        speed += f", {reading.num_tokens / max(elapsed_s, 1e-9):,.0f} tokens a second"
    before = f" after {num_before:,} that were kept" if num_before else ""
    return f"{count:,} {noun}s in {elapsed_s:,.1f} s{before}, {speed}"


def _describe_rest(share: float | None, first_share: float | None, elapsed_s: float) -> str:
    if share is None:
        return ""
    done = share - (first_share or 0.0)
    left = f", about {_describe_time(elapsed_s * (1.0 - share) / done)} left" if done > 0 else ""
    return f"; {share:.0%}{left}"


def _describe_time(seconds: float) -> str:
    if seconds < _MINUTE_S:
        return f"{seconds:.0f} s"
    if seconds < _HOUR_S:
        return f"{seconds // _MINUTE_S:.0f} min {seconds % _MINUTE_S:.0f} s"
    return f"{seconds // _HOUR_S:.0f} h {seconds % _HOUR_S // _MINUTE_S:.0f} min"
