"""Tags of words: the entities in a row of tags, and tag schemes.

Entities are read by the rules of the CoNLL scoring script, which accept every scheme and invalid rows: an entity
continues while its type does, and a new one begins at B, S or U, behind E, L, S or U, at another type, and behind O.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import NamedTuple

_OUTSIDE = "O"
_PREFIXED = re.compile(r"([BIESLU])-(.+)")
_BEGINNING = frozenset("BSU")
_CLOSING = frozenset("ELSU")


class Tag(NamedTuple):
    letter: str
    """O, B, I, E, S, L or U; empty where a file has bare types."""
    type: str

    @property
    def is_inside(self) -> bool:
        return self.letter != _OUTSIDE

    @property
    def begins(self) -> bool:
        """Whether an entity begins here, whatever comes before."""
        return self.letter in _BEGINNING

    @property
    def closes(self) -> bool:
        """Whether the entity ends here, whatever follows."""
        return self.letter in _CLOSING

    def __str__(self) -> str:
        if not self.is_inside:
            return _OUTSIDE
        return f"{self.letter}-{self.type}" if self.letter else self.type


OUTSIDE = Tag(_OUTSIDE, "")


class Entity(NamedTuple):
    type: str
    start: int
    stop: int
    """One behind its last word."""


def read_prefixed(name: str) -> Tag | None:
    """O, or a letter and a type; None for anything else."""
    if name == _OUTSIDE:
        return OUTSIDE
    match = _PREFIXED.fullmatch(name)
    return None if match is None else Tag(*match.groups())


def read_classes_as_tags(names: Sequence[str]) -> list[Tag]:
    """The tags of a model's classes.

    Where some have no prefix, only B and I are read as one, as transformers does: a type may be called 'E-mail'.
    """
    tags = [read_prefixed(name) for name in names]
    if None not in tags:
        return [tag for tag in tags if tag is not None]
    kept = [tag if tag is not None and tag.letter in (_OUTSIDE, "B", "I") else None for tag in tags]
    return [tag or Tag("", name) for tag, name in zip(kept, names, strict=True)]


def goes_on(before: Tag, tag: Tag) -> bool:
    """Whether a word belongs to the entity of the word before it."""
    if not (before.is_inside and tag.is_inside):
        return False
    return not before.closes and not tag.begins and before.type == tag.type


def find_entities(tags: Sequence[Tag]) -> list[Entity]:
    return list(_walk(tags))


def _walk(tags: Sequence[Tag]) -> Iterator[Entity]:
    start: int | None = None
    before = OUTSIDE
    for place, tag in enumerate(tags):
        if start is not None and not goes_on(before, tag):
            yield Entity(before.type, start, place)
            start = None
        if start is None and tag.is_inside:
            start = place
        before = tag
    if start is not None:
        yield Entity(before.type, start, len(tags))


class Scheme(Enum):
    """Ramshaw and Marcus 1995 (IOB1), Sang and Veenstra 1999 (IOB2, here BIO), Ratinov and Roth 2009 (BILOU)."""

    IO = "IO"
    BIO = "BIO"
    IOB1 = "IOB1"
    BIOES = "BIOES"
    BILOU = "BILOU"

    @property
    def letters(self) -> tuple[str, ...]:
        """The letters of a type's tags."""
        return _LETTERS[self]


_LETTERS = {
    Scheme.IO: ("I",),
    Scheme.BIO: ("B", "I"),
    Scheme.IOB1: ("B", "I"),
    Scheme.BIOES: ("B", "I", "E", "S"),
    Scheme.BILOU: ("B", "I", "L", "U"),
}


def list_candidates(letters: Iterable[str]) -> list[Scheme]:
    """The schemes that these letters may belong to, the most likely first."""
    found = set(letters) - {OUTSIDE.letter, ""}
    return [scheme for scheme in Scheme if found <= set(scheme.letters)]


def find_break(tags: Sequence[Tag], scheme: Scheme) -> int | None:
    """The first word whose tag the scheme does not have there, or one behind the last word where the row may not end.

    None where all are right.
    """
    for place in range(len(tags) + 1):
        before = tags[place - 1] if place else OUTSIDE
        tag = tags[place] if place < len(tags) else OUTSIDE
        if _is_break(before, tag, scheme):
            return place
    return None


def _is_break(before: Tag, tag: Tag, scheme: Scheme) -> bool:
    if tag.is_inside and tag.letter and tag.letter not in scheme.letters:
        return True
    continues = goes_on(before, tag)
    match scheme:
        case Scheme.IO:
            return False
        case Scheme.BIO:
            return tag.letter == "I" and not continues
        case Scheme.IOB1:
            # B stands only between two entities of a type that touch
            return tag.letter == "B" and not (before.is_inside and before.type == tag.type)
        case Scheme.BIOES | Scheme.BILOU:
            needs_more = before.letter in ("B", "I")
            is_more = tag.letter in ("I", "E", "L")
            return needs_more != is_more or (is_more and not continues)


def convert_tags(tags: Sequence[Tag], scheme: Scheme) -> list[Tag]:
    """Convert tags to another scheme; IO merges adjacent entities of one type."""
    converted = [OUTSIDE] * len(tags)
    for entity in find_entities(tags):
        for place in range(entity.start, entity.stop):
            letter = _choose_letter(place == entity.start, place == entity.stop - 1, scheme)
            converted[place] = Tag(letter, entity.type)
    return converted


def _choose_letter(is_first: bool, is_last: bool, scheme: Scheme) -> str:
    if scheme is Scheme.IO:
        return "I"
    if scheme is Scheme.BIOES and is_last:
        return "S" if is_first else "E"
    return "B" if is_first else "I"


def list_classes(tags: Iterable[Tag]) -> list[str]:
    """All classes: O if it occurs, then for each type all tags of the scheme."""
    found = set(tags)
    letters = {tag.letter for tag in found if tag.is_inside}
    scheme = list_candidates(letters)[0]
    types = sorted({tag.type for tag in found if tag.is_inside})
    complete = ("",) if "" in letters else scheme.letters
    return [
        *([str(OUTSIDE)] if OUTSIDE in found else []),
        *(str(Tag(letter, name)) for name in types for letter in complete),
    ]
