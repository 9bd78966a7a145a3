"""Tags of words, and the entities that a row of them spells, by the rules of the CoNLL scoring script.

Those rules read every scheme, and rows that break theirs: an entity goes on while its type does, and a new one begins
at B, S or U, behind E, L, S or U, at another type, and behind O.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
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
        """Whether an entity begins here, whatever stands before."""
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
    """The tags that a model's classes are.

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
