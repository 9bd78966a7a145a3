"""Split texts into sentences, by punctuation alone, without a language model, so a few splits are wrong.

Texts that are too long for one document are split here too, after a sentence if possible.
"""

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
_BLANKS = " \n\t\u3000"

MAX_DOCUMENT_CHARS = 1_000_000
"""Longer texts are cut into documents: until its answer is read, a tokenizer needs some 100 bytes a character."""


def split_sentences(text: str) -> Iterator[str]:
    """The sentences of a text; a sentence never crosses a line end, and text without a final mark (a heading) is
    dropped.
    """
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


def cut_long_text(text: str) -> Iterator[str]:
    """Documents of at most `MAX_DOCUMENT_CHARS`, without outer blanks; one that is short enough stays as it is."""
    start = 0
    while len(text) - start > MAX_DOCUMENT_CHARS:
        end = find_cut(text, start)
        if document := text[start:end].strip():
            yield document
        start = end
    if not start:
        yield text
    elif rest := text[start:].strip():
        yield rest


def find_cut(text: str, start: int = 0) -> int:
    """The end of a document that begins at `start` of a longer text: after a sentence, a space or any character."""
    last = start + MAX_DOCUMENT_CHARS
    near = last - MAX_DOCUMENT_CHARS // 8
    ends = [near + end.end() for end in _END.finditer(text[near : last + 1])]  # one more: what follows the mark
    if ends := [end for end in ends if end <= last]:
        return ends[-1]
    blank = max(text.rfind(blank, last - MAX_DOCUMENT_CHARS // 2, last) for blank in _BLANKS)
    return last if blank < 0 else blank + 1
