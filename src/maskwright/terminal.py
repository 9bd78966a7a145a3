"""Everything that is printed passes here: control characters in names and texts of files do not reach the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_LATE_CONTROLS = (*range(0x7F, 0xA0), *range(0xD800, 0xE000))
"""DEL, C1 and lone surrogates, which no output can encode."""
_CLEANED = dict.fromkeys((*range(0x20), *_LATE_CONTROLS), _REPLACEMENT) | {ord(kept): kept for kept in "\n\t"}
_ESCAPED = {code: f"\\u{code:04x}" for code in _LATE_CONTROLS}


def clean(text: str) -> str:
    """The text without control characters other than line ends and tabs."""
    return text.translate(_CLEANED)


def escape_json(text: str) -> str:
    """JSON with the same meaning and without control characters; its writer has escaped those below 0x20."""
    return text.translate(_ESCAPED)


def echo(message: Any = "", *, err: bool = False) -> None:
    stream = sys.stderr if err else sys.stdout
    stream.write(f"{clean(str(message))}\n")
    stream.flush()


class CleanConsole(Console):
    """A console whose own colours and bars stay, while what is printed is cleaned."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(clean(segment.text), segment.style)
