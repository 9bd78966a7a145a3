"""Where an answer stands in its context."""

from __future__ import annotations

import re

Span = tuple[int, int]
"""The first character and the one behind the last."""


def find_answer(context: str, answer: str, start: int | None = None) -> Span | None:
    """The answer's characters: at `start` if they are there, else at its nearest occurrence; None if there is none.

    Whole words come before parts of words, and an exact occurrence before one that differs in case or blanks. Without
    a `start` the first counts.
    """
    words = answer.split()
    if not words:
        return None
    stripped = answer.strip()
    if start is not None:
        start += len(answer) - len(answer.lstrip())
        if start >= 0 and context.startswith(stripped, start):
            return start, start + len(stripped)
    exact, loose = re.escape(stripped), r"\s+".join(map(re.escape, words))
    for pattern in (
        re.compile(rf"(?<!\w){exact}(?!\w)"),
        re.compile(rf"(?<!\w){loose}(?!\w)", re.IGNORECASE),
        re.compile(exact),
        re.compile(loose, re.IGNORECASE),
    ):
        spans = [match.span() for match in pattern.finditer(context)]
        if spans:
            return min(spans, key=lambda span: abs(span[0] - (start or 0)))
    return None
