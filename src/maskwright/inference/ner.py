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
from tokenizers import Encoding
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


@dataclass
class AnsweringSample(Sample):
    first: int = 0
    stop: int = 0
    """The tokens it answers for, counted in the sample."""


@dataclass
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

    def tokenize(self, items: Sequence[str]) -> list[Encoding]:
        return self.tokenizer.encode_spans(items)

    def prepare(
        self, items: Sequence[str], name: Name, tokenized: Sequence[Encoding] | None = None
    ) -> list[PreparedPieces]:
        return [self._cut(pieces) for pieces in encode_pieces(self.tokenizer, self.encoder, items, name, tokenized)]

    def _cut(self, pieces: TextPieces) -> PreparedPieces:
        cls, sep = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        num_tokens = len(pieces.ids)
        if num_tokens <= self._size:
            return PreparedPieces([AnsweringSample([cls, *pieces.ids, sep], first=1, stop=1 + num_tokens)], pieces)
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
    """What gets one class, and one of an entity: a token, or a word."""

    place: int
    """Among all tokens or words, of those outside entities as well."""
    class_number: int
    score: float
    tokens: range


class EntityGrouper:
    def __init__(self, classes: Sequence[str], aggregation: str, decode: Callable[[list[str]], str]) -> None:
        """`decode` makes a text of tokens."""
        if aggregation not in AGGREGATIONS:
            raise InputError(f"no aggregation '{aggregation}'{suggest(aggregation, AGGREGATIONS)}")
        self.aggregation = aggregation
        self._classes = list(classes)
        self._tags = read_classes_as_tags(classes)
        self._is_inside = np.array([tag.is_inside for tag in self._tags])
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
        if not self._has_entity(scores):
            return []
        tokens = [range(place, place + 1) for place in range(len(pieces.ids)) if pieces.has_text(place)]
        match self.aggregation:
            case "none":
                return [self._describe_token(pieces, unit) for unit in self._find_inside(tokens, scores)]
            case "simple":
                return [self._describe(pieces, group) for group in self._cut(self._find_inside(tokens, scores))]
        return [self._describe(pieces, group) for group in self._cut(self._find_inside(pieces.words, scores))]

    def _has_entity(self, scores: Floats) -> bool:
        """False only where no word can be one: a word has the class of one of its tokens, or that of their mean, which
        is outside where all its tokens are, if there is but one class outside."""
        is_surely_outside = self.aggregation != "average" or np.count_nonzero(~self._is_inside) == 1
        return bool(self._is_inside[scores.argmax(-1)].any()) or not is_surely_outside

    def _find_inside(self, words: Sequence[range], scores: Floats) -> list[_Unit]:
        """Those of the words that belong to an entity."""
        rows = self._score_words(words, scores)
        best = rows.argmax(-1)
        inside = np.flatnonzero(self._is_inside[best])
        classes = best[inside]
        found = zip(inside.tolist(), classes.tolist(), rows[inside, classes].tolist(), strict=True)
        return [_Unit(place, number, score, words[place]) for place, number, score in found]

    def _score_words(self, words: Sequence[range], scores: Floats) -> Floats:
        """(words, C)"""
        if self.aggregation not in ("max", "average") or not words:
            return scores[[word.start for word in words]]
        parts = [scores[word.start : word.stop] for word in words]
        if self.aggregation == "average":
            return np.stack([part.mean(0) for part in parts])
        return np.stack([part[part.max(-1).argmax()] for part in parts])

    def _cut(self, units: Sequence[_Unit]) -> list[list[_Unit]]:
        """Runs of units that are one entity each."""
        groups: list[list[_Unit]] = []
        for unit in units:
            before = groups[-1][-1] if groups else None
            if before is not None and self._goes_on(before, unit):
                groups[-1].append(unit)
            else:
                groups.append([unit])
        return groups

    def _goes_on(self, before: _Unit, unit: _Unit) -> bool:
        is_next = before.place == unit.place - 1
        return is_next and goes_on(self._tags[before.class_number], self._tags[unit.class_number])

    def _describe(self, pieces: TextPieces, group: Sequence[_Unit]) -> EntityRecord:
        words = [pieces.names[unit.tokens.start : unit.tokens.stop] for unit in group]
        return {
            "entity_group": self._tags[group[0].class_number].type,
            "score": float(np.mean([unit.score for unit in group])),
            "word": self._decode([word[0] if self.aggregation == "simple" else self._decode(word) for word in words]),
            "start": pieces.spans[group[0].tokens.start][0],
            "end": pieces.spans[group[-1].tokens.stop - 1][1],
        }

    def _describe_token(self, pieces: TextPieces, unit: _Unit) -> EntityRecord:
        """A token by its number, counted from the special token before the first."""
        place = unit.tokens.start
        start, stop = pieces.spans[place]
        return {
            "entity": self._classes[unit.class_number],
            "score": unit.score,
            "index": place + 1,
            "word": pieces.names[place],
            "start": start,
            "end": stop,
        }


class TextPieces:
    """The tokens of a text, without special tokens around them.

    Words and places are read from the tokenizer's answer when they are asked for: a text without an entity never is.
    """

    def __init__(self, text: str, encoding: Encoding, prefix: str | None, unk_token_id: int) -> None:
        """`prefix` is how a token begins that goes on with a word, where the tokenizer's model has one."""
        self.ids: list[int] = encoding.ids
        self._text = text
        self._encoding = encoding
        self._prefix = prefix
        self._unknown = unk_token_id

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """The characters of each token, without blanks around them; one that stands for blanks alone has none."""
        text = self._text
        return [
            (start, stop)
            if start < stop and not (text[start].isspace() or text[stop - 1].isspace())
            else _trim(text, start, stop)
            for start, stop in self._encoding.offsets
        ]

    @cached_property
    def names(self) -> list[str]:
        """The tokens as they are written; an unknown one is the text it stands for."""
        names: list[str] = self._encoding.tokens
        for place in self._find_unknown():
            names[place] = self._text[slice(*self.spans[place])]
        return names

    @cached_property
    def continues(self) -> Bools:
        """Whether a token goes on with the word of the token before it."""
        if self._prefix:
            continues = [name.startswith(self._prefix) for name in self._encoding.tokens]
        else:
            ends = [0, *(stop for _, stop in self.spans[:-1])]
            continues = [_goes_on(self._text, span, end) for span, end in zip(self.spans, ends, strict=True)]
        for place in self._find_unknown():
            continues[place] = False
        return np.array(continues, dtype=bool)

    def _find_unknown(self) -> list[int]:
        if self._unknown not in self.ids:
            return []
        return [place for place, token_id in enumerate(self.ids) if token_id == self._unknown]

    @cached_property
    def words(self) -> list[range]:
        """The tokens of each word; those of blanks belong to none."""
        bounds = [0, *(np.flatnonzero(~self.continues[1:]) + 1).tolist(), len(self.ids)]
        return [range(start, stop) for start, stop in pairwise(bounds) if start < stop and self.has_text(start)]

    def has_text(self, place: int) -> bool:
        start, stop = self.spans[place]
        return start < stop


def encode_pieces(
    tokenizer: Tokenizer,
    encoder: nn.Module,
    texts: Sequence[str],
    name: Name,
    tokenized: Sequence[Encoding] | None = None,
) -> list[TextPieces]:
    refuse_empty(texts, name)
    prefix = getattr(tokenizer.backend.model, "continuing_subword_prefix", None)
    encodings = tokenizer.encode_spans(texts) if tokenized is None else tokenized
    pieces = [
        TextPieces(text, encoding, prefix, tokenizer.unk_token_id)
        for text, encoding in zip(texts, encodings, strict=True)
    ]
    refuse_unknown([one.ids for one in pieces], encoder)
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
