"""What all pictures of a report share: sizes, colours, and short names."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

MOST_CLASSES = 20
"""Of one picture; of more classes those are shown that there is most to see of."""
BLUE, ORANGE, GREEN, GREY = "#3b6ea8", "#d98032", "#4a9a5b", "#777777"
_DOTS_PER_INCH = 110
_LONGEST_NAME = 28


@dataclass(frozen=True)
class Picture:
    title: str
    caption: str
    """What to see in it, in a sentence or two."""
    png: bytes


def render(figure: Any) -> bytes:
    """The PNG of a matplotlib figure."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DOTS_PER_INCH)
    return buffer.getvalue()


def shorten(name: str) -> str:
    """A class name that fits an axis, taken as it is: matplotlib would read what stands between dollars as formulas."""
    line = " ".join(name.split()).replace("$", r"\$")
    return line if len(line) <= _LONGEST_NAME else f"{line[: _LONGEST_NAME - 1]}…"
