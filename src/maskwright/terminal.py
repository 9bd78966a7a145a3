"""Output to the terminal, without control characters that names and texts of files may contain."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterable
from io import TextIOWrapper
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_LATE_CONTROLS = (
    *range(0x7F, 0xA0),
    *range(0xD800, 0xE000),
    *range(0x2028, 0x202F),
    *range(0x2066, 0x206A),
)
"""DEL and C1; lone surrogates, which no output can encode; separators of lines; what turns the direction of writing."""
_CLEANED = dict.fromkeys((*range(0x20), *_LATE_CONTROLS), _REPLACEMENT) | {ord(kept): kept for kept in "\n\t"}
_ESCAPES = "maskwright.escapes"
_ESCAPED = {code: f"\\u{code:04x}" for code in _LATE_CONTROLS}


def clean(text: str) -> str:
    """The text without control characters other than line ends and tabs."""
    return text.translate(_CLEANED)


def escape_json(text: str) -> str:
    """JSON with the same meaning and without control characters; its writer has escaped those below 0x20."""
    return text.translate(_ESCAPED)


def open_terminal() -> None:
    """Let streams of any encoding take any text: what one lacks is written as JSON escapes it."""
    codecs.register_error(_ESCAPES, _escape_unencodable)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=_ESCAPES)


def _escape_unencodable(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{high << 8 | low:04x}" for high, low in zip(units[::2], units[1::2], strict=True)), error.end


def echo(message: Any = "", *, err: bool = False) -> None:
    stream = sys.stderr if err else sys.stdout
    stream.write(f"{clean(str(message))}\n")
    stream.flush()


def say(console: Console, text: str, style: str = "") -> None:
    """Print a line unchanged: no wrapping, no markup."""
    console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


def warn(console: Console, text: str) -> None:
    say(console, f"warning: {text}", "yellow")


class CleanConsole(Console):
    """A console whose own colours and bars stay, while what is printed is cleaned."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(clean(segment.text), segment.style)
