"""The program that a wiki worker runs: page texts in on standard input, lists of paragraphs out, one JSON per line.

A process of its own, because the parser is native code that no exception can stop: a page that takes too long, too
much memory or the whole process down costs that page only.
"""

from __future__ import annotations

import json
import signal
import sys
from contextlib import suppress
from typing import Any

_MAX_MEMORY_BYTES = 2 << 30


def main() -> None:
    """The first line in holds the settings, the first line out says that the worker is ready."""
    _limit_memory()
    from maskwright.text.wiki.markup import page_paragraphs

    settings = json.loads(sys.stdin.readline())
    hidden = frozenset(settings["hidden"])
    _answer("ready")
    for line in sys.stdin:
        _set_alarm(settings["alarm_s"])
        try:
            answer: dict[str, Any] = {"paragraphs": page_paragraphs(json.loads(line), hidden)}
        except Exception as error:
            answer = {"error": type(error).__name__}
        _set_alarm(0.0)
        _answer(answer)


def _answer(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = _MAX_MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(_MAX_MEMORY_BYTES, hard)
    with suppress(ValueError, OSError):  # macOS has the limit but may refuse to set it
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _set_alarm(seconds: float) -> None:
    """The parent kills a slow worker; this ends one whose parent is gone. Unhandled, the signal ends the process."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


if __name__ == "__main__":
    main()
