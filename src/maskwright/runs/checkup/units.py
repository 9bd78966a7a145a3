"""Bytes and seconds as people read them."""

from __future__ import annotations

_BYTE_UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
_TIME_UNITS = (("days", 86_400), ("hours", 3_600), ("minutes", 60))


def format_bytes(number: float) -> str:
    for unit, size in _BYTE_UNITS:
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f} bytes"


def format_seconds(seconds: float) -> str:
    """In the largest unit of which there are at least two."""
    for unit, size in _TIME_UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.3g} seconds"
