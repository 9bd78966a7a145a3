"""Texts to sentences, by punctuation alone: no model of any language, so now and then a cut is wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator

_OPENING = re.escape("\"'([«\u201c\u2018¿¡")
_CLOSING = re.escape("\"')]»\u201d\u2019」』\uff09")
_END = re.compile(rf"[.!?…]+[{_CLOSING}]*(?=\s|$)|[。\uff01\uff1f]+[{_CLOSING}]*")
_NEXT = re.compile(rf"[\s{_OPENING}]*(.?)")
_LAST_WORD = re.compile(r"(\w+(?:\.\w+)*)$")
_ABBREVIATIONS = frozenset(["mr", "mrs", "ms", "dr", "prof", "st", "jr", "sr", "vs", "no", "vol", "fig", "e.g", "i.e"])
_LONGEST_ABBREVIATION = 4


def split_sentences(text: str) -> Iterator[str]:
    """The sentences of a text; none goes over the end of a line, and what has no final mark (a heading) is left out."""
    for line in text.splitlines():
        start = 0
        for end in _END.finditer(line):
            if not _goes_on(line, end):
                yield line[start : end.end()].strip()
                start = end.end()


def _goes_on(line: str, end: re.Match[str]) -> bool:
    """Whether the mark is inside a sentence: after an initial or an abbreviation, or before a small letter."""
    following = _NEXT.match(line, end.end())
    if following is not None and following[1].islower():
        return True
    if end[0] != "." or end.end() == len(line):
        return False
    word = _LAST_WORD.search(line, max(0, end.start() - _LONGEST_ABBREVIATION - 1), end.start())
    return word is not None and ((len(word[1]) == 1 and word[1].isupper()) or word[1].lower() in _ABBREVIATIONS)
