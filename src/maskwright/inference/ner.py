"""Named entities and other classes of words, with their places in the text.

Scores of tokens are put together as the token-classification pipeline of `transformers` does. T tokens, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from maskwright.errors import InputError
from maskwright.inference.layout import EncodedBatch, Reduction, Sample
from maskwright.inference.runner import Name, Prepared, TaskKind
from maskwright.inference.texts import (
    NUM_SPECIALS,
    Floats,
    as_texts,
    choose_max_length,
    find_windows,
    refuse_empty,
    refuse_unknown,
)
from maskwright.suggestions import suggest
from maskwright.tasks.model import TaskModel
from maskwright.tasks.ner.tags import goes_on, read_classes_as_tags
from maskwright.tasks.ner.token_classification import TokenClassification
from maskwright.text.tokenizer.tokenizer import Tokenizer

Aggregation = Literal["first", "average", "max", "simple", "none"]
AGGREGATIONS: tuple[str, ...] = get_args(Aggregation)
EntityRecord = dict[str, Any]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class AnsweringSample(Sample):
    first: int = 0
    stop: int = 0
    """The tokens it answers for, counted in the sample."""


@dataclass(frozen=True)
class PreparedPieces(Prepared):
    pieces: TextPieces


class FindEntities(TaskKind[str, list[EntityRecord]]):
    """The entities of a text, each with `entity_group`, `score`, `word`, `start` and `end`.

    A word has the class of its first token (`first`), of its surest one (`max`) or of the mean of all (`average`).
    `simple` lets each token have its own, and `none` lists the tokens: `entity`, `score`, `index`, `word`, `start` and
    `end`. A text longer than `max_length` is read in overlapping windows.
    """

    def __init__(
        self, model: TaskModel, tokenizer: Tokenizer, *, aggregation: str = "first", max_length: int | None = None
    ) -> None:
        assert isinstance(model.task, TokenClassification)
        assert model.task_head.is_per_token
        super().__init__(model, tokenizer)
        self._grouper = EntityGrouper(model.task.classes, aggregation, self._decode)
        self._size = choose_max_length(self.encoder, max_length) - NUM_SPECIALS

    @property
    def example(self) -> dict[str, Any]:
        return self.describe_answer([self._grouper.example])

    def prepare(self, items: Sequence[str], name: Name) -> list[PreparedPieces]:
        return [self._cut(pieces) for pieces in encode_pieces(self.tokenizer, self.encoder, items, name)]

    def _cut(self, pieces: TextPieces) -> PreparedPieces:
        cls, sep = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        samples = [
            AnsweringSample([cls, *pieces.ids[start:stop], sep], first=1 + begin - start, stop=1 + end - start)
            for (start, stop), (begin, end) in find_word_windows(pieces.continues, self._size)
        ]
        return PreparedPieces(samples, pieces)

    def reduce(self, batch: EncodedBatch[AnsweringSample]) -> Reduction:
        """Probabilities (T, C) of the tokens that each sample answers for."""
        samples, begins = batch.samples, np.cumsum(batch.lengths) - batch.lengths

        def split(scores: Tensor) -> list[Floats]:
            found = scores.numpy()
            # A copy, so that the batch's array need not be kept for a part of it.
            return [
                found[begin + one.first : begin + one.stop].copy()
                for begin, one in zip(begins.tolist(), samples, strict=True)
            ]

        return Reduction((self.compute_logits(batch).softmax(-1),), split)

    def answer(self, prepared: PreparedPieces, reduced: Sequence[Floats]) -> list[EntityRecord]:
        return self._grouper.group(prepared.pieces, np.concatenate(reduced))

    def describe_answer(self, answer: list[EntityRecord]) -> dict[str, Any]:
        return {"entities": answer}

    def as_items(self, inputs: Any) -> tuple[list[str], bool]:
        return as_texts(inputs)

    def _decode(self, tokens: list[str]) -> str:
        decoder = self.tokenizer.backend.decoder
        return " ".join(tokens) if decoder is None else str(decoder.decode(tokens))


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


@dataclass(frozen=True)
class TextPieces:
    """The tokens of a text, without special tokens around them."""

    ids: list[int]
    names: list[str]
    """The tokens as they are written; an unknown one is the text it stands for."""
    spans: list[tuple[int, int]]
    """The characters of each token, without blanks around them; one that stands for blanks alone has none."""
    continues: Bools
    """Whether a token goes on with the word of the token before it."""

    @cached_property
    def words(self) -> list[range]:
        """The tokens of each word; those of blanks belong to none."""
        bounds = [0, *(place for place in range(1, len(self.ids)) if not self.continues[place]), len(self.ids)]
        return [range(start, stop) for start, stop in pairwise(bounds) if start < stop and self.has_text(start)]

    def has_text(self, place: int) -> bool:
        start, stop = self.spans[place]
        return start < stop


def encode_pieces(tokenizer: Tokenizer, encoder: nn.Module, texts: Sequence[str], name: Name) -> list[TextPieces]:
    refuse_empty(texts, name)
    encodings = tokenizer.encode_spans(texts)
    refuse_unknown([encoding.ids for encoding in encodings], encoder)
    prefix = getattr(tokenizer.backend.model, "continuing_subword_prefix", None)
    pieces = []
    for text, encoding in zip(texts, encodings, strict=True):
        ids, names = encoding.ids, encoding.tokens
        spans = [_trim(text, *span) for span in encoding.offsets]
        is_known = [token_id != tokenizer.unk_token_id for token_id in ids]
        if prefix:
            continues = [name.startswith(prefix) and known for name, known in zip(names, is_known, strict=True)]
        else:
            ends = [0, *(stop for _, stop in spans[:-1])]
            rows = zip(spans, ends, is_known, strict=True)
            continues = [_goes_on(text, span, end) and known for span, end, known in rows]
        shown = [
            name if known else text[slice(*span)] for name, span, known in zip(names, spans, is_known, strict=True)
        ]
        pieces.append(TextPieces(ids, shown, spans, np.array(continues, dtype=bool)))
    return pieces


def _trim(text: str, start: int, stop: int) -> tuple[int, int]:
    while start < stop and text[start].isspace():
        start += 1
    while start < stop and text[stop - 1].isspace():
        stop -= 1
    return start, stop


def _goes_on(text: str, span: tuple[int, int], end_before: int) -> bool:
    """Whether no white space parts a token from the one before: all that is known of words where no token says.

    Several tokens may share a character, each with some of its bytes.
    """
    start, stop = span
    return start < stop and start > 0 and (start < end_before or not text[start - 1].isspace())


def find_word_windows(continues: Bools, size: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Overlapping windows of at most `size` tokens, each with the tokens it answers for.

    Windows hand over in the middle of what they share, at the beginning of a word: so each token is answered from the
    window in which it is farther from the edge, and a word from one window alone.
    """
    windows = find_windows(len(continues), size)
    cuts = [0]
    for (start, _), (_, stop) in zip(windows[1:], windows[:-1], strict=True):
        middle = (start + stop) // 2
        word_starts = np.flatnonzero(~continues[start : middle + 1])
        cuts.append(start + int(word_starts[-1]) if len(word_starts) else middle)
    cuts.append(len(continues))
    return list(zip(windows, pairwise(cuts), strict=True))
