"""The names of tags in a file to tags, and the scheme they are of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from maskwright.errors import InputError
from maskwright.tasks.ner.conll import RawSentence
from maskwright.tasks.ner.schemes import Scheme, find_break, list_candidates
from maskwright.tasks.ner.tagging import Tag, read_prefixed

_LOOKS_PREFIXED = re.compile(r"[A-Za-z]-.*")


def read_tags(path: Path, raw: Sequence[RawSentence]) -> list[list[Tag]]:
    """All with a letter before the type, or all bare types."""
    first: dict[str, str] = {}
    for sentence in raw:
        for name, line in zip(sentence.tags, sentence.lines, strict=True):
            first.setdefault(name, f"{path}:{line}")
    tags = _read_names(first)
    return [[tags[name] for name in sentence.tags] for sentence in raw]


def _read_names(places: dict[str, str]) -> dict[str, Tag]:
    """Names to tags, each with the place where it first stands."""
    tags: dict[str, Tag] = {}
    for name, place in places.items():
        tag = read_prefixed(name)
        if tag is None and _LOOKS_PREFIXED.fullmatch(name):
            raise InputError(f"{place} has the tag '{name}'; expected O, or one of B, I, E, S, L, U and a type: B-PER")
        tags[name] = tag or Tag("", name)
    bare = [name for name, tag in tags.items() if not tag.letter]
    prefixed = [name for name, tag in tags.items() if tag.letter and tag.is_inside]
    if bare and prefixed:
        raise InputError(
            f"{places[bare[0]]} has the tag '{bare[0]}' without a prefix, but {places[prefixed[0]]} has"
            f" '{prefixed[0]}'; write all tags in one way"
        )
    return tags


def find_scheme(rows: Iterable[Sequence[Tag]]) -> Scheme | None:
    """The first scheme that all rows keep to; None where there is none."""
    different = list(dict.fromkeys(map(tuple, rows)))
    candidates = list_candidates(tag.letter for row in different for tag in row)
    return next((one for one in candidates if all(find_break(row, one) is None for row in different)), None)
