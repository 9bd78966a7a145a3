"""Scores of tokens to entities, as the token-classification pipeline of `transformers` puts them together.

T tokens, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from maskwright.errors import InputError
from maskwright.inference.token_pieces import TextPieces
from maskwright.inference.windows import Floats
from maskwright.suggestions import suggest
from maskwright.tasks.ner.tags import goes_on, read_classes_as_tags

Aggregation = Literal["first", "average", "max", "simple", "none"]
AGGREGATIONS: tuple[str, ...] = get_args(Aggregation)
EntityRecord = dict[str, Any]


class _Unit(NamedTuple):
    """What gets one class: a token, or a word."""

    class_number: int
    score: float
    word: str
    start: int
    stop: int


class EntityGrouper:
    def __init__(self, classes: Sequence[str], aggregation: str, decode: Callable[[list[str]], str]) -> None:
        """`decode` makes a text of tokens."""
        if aggregation not in AGGREGATIONS:
            raise InputError(f"no aggregation '{aggregation}'{suggest(aggregation, AGGREGATIONS)}")
        self.aggregation = aggregation
        self._classes = list(classes)
        self._tags = read_classes_as_tags(classes)
        self._decode = decode

    @property
    def example(self) -> EntityRecord:
        """The keys of an entity, with values of their types."""
        place = {"word": "", "start": 0, "end": 0}
        if self.aggregation == "none":
            return {"entity": "", "score": 0.0, "index": 0, **place}
        return {"entity_group": "", "score": 0.0, **place}

    def group(self, pieces: TextPieces, scores: Floats) -> list[EntityRecord]:
        """The entities of a text from the probabilities (T, C) of its tokens."""
        if self.aggregation == "none":
            return self._list_tokens(pieces, scores)
        if self.aggregation == "simple":
            units = [unit for unit in self._list_tokens_as_units(pieces, scores) if unit.start < unit.stop]
        else:
            units = [self._join_word(pieces, word, scores) for word in pieces.words]
        return [self._describe(group) for group in self._cut(units)]

    def _list_tokens(self, pieces: TextPieces, scores: Floats) -> list[EntityRecord]:
        """Tokens that are no O, numbered from the special token before the first."""
        return [
            {
                "entity": self._classes[unit.class_number],
                "score": unit.score,
                "index": number,
                "word": unit.word,
                "start": unit.start,
                "end": unit.stop,
            }
            for number, unit in enumerate(self._list_tokens_as_units(pieces, scores), start=1)
            if self._tags[unit.class_number].is_inside and unit.start < unit.stop
        ]

    def _list_tokens_as_units(self, pieces: TextPieces, scores: Floats) -> list[_Unit]:
        best, values = scores.argmax(-1).tolist(), scores.max(-1, initial=0.0).tolist()
        rows = zip(best, values, pieces.names, pieces.spans, strict=True)
        return [_Unit(number, value, name, *span) for number, value, name, span in rows]

    def _join_word(self, pieces: TextPieces, word: range, scores: Floats) -> _Unit:
        rows = scores[word.start : word.stop]
        match self.aggregation:
            case "first":
                row = rows[0]
            case "max":
                row = rows[rows.max(-1).argmax()]
            case _:
                row = rows.mean(0)
        number = int(row.argmax())
        name = self._decode(pieces.names[word.start : word.stop])
        return _Unit(number, float(row[number]), name, pieces.spans[word.start][0], pieces.spans[word.stop - 1][1])

    def _cut(self, units: Sequence[_Unit]) -> list[list[_Unit]]:
        """Runs of units that are one entity each."""
        groups: list[list[_Unit]] = []
        before: _Unit | None = None
        for unit in units:
            tag = self._tags[unit.class_number]
            if before is not None and goes_on(self._tags[before.class_number], tag):
                groups[-1].append(unit)
            elif tag.is_inside:
                groups.append([unit])
            before = unit
        return groups

    def _describe(self, group: Sequence[_Unit]) -> EntityRecord:
        return {
            "entity_group": self._tags[group[0].class_number].type,
            "score": float(np.mean([unit.score for unit in group])),
            "word": self._decode([unit.word for unit in group]),
            "start": group[0].start,
            "end": group[-1].stop,
        }
