"""Sentences of words to documents of tokens that know where each word begins."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from maskwright.data.assembly import NUM_SPECIALS
from maskwright.data.store import TokenStore
from maskwright.errors import InputError
from maskwright.tasks.config import TaskConfig
from maskwright.tasks.features import Features
from maskwright.tasks.ner.examples import TaggedSentence
from maskwright.tasks.ner.tags import goes_on
from maskwright.text.tokenizer.tokenizer import CHUNK_CHARS, Tokenizer, group_texts

_BETWEEN_WORDS = " "
_NUM_BEFORE = 1
"""Special tokens before a document's own."""
_USUAL_LENGTH = 512
"""All documents have as many slots for words as the longest: one very long sentence would make every batch as large."""


@dataclass(frozen=True)
class TaggedDocument:
    """A sentence, or a part of a long one, without words that have no token."""

    sentence: TaggedSentence
    places: tuple[int, ...]
    """The first token of each word, counted from the document's first special token."""

    @property
    def place(self) -> str:
        return self.sentence.place

    @property
    def content(self) -> tuple[Any, ...]:
        return self.sentence.content


@dataclass(frozen=True)
class _Tokens:
    """The tokens of a sentence, and of each word that has some its number and first token."""

    ids: list[int]
    words: list[int]
    firsts: list[int]


def featurize_words(
    examples: Sequence[TaggedSentence], tokenizer: Tokenizer, max_length: int, config: TaskConfig
) -> Features:
    """Words are joined by spaces and tokenized as a text, as in inference.

    A sentence longer than the model, or than is usual where nothing else was asked for, becomes several documents.
    These begin at words and, where it can be, at no word inside an entity.
    """
    if config.max_length is None:
        max_length = min(max_length, _USUAL_LENGTH)
    room = max_length - NUM_SPECIALS
    documents: list[TaggedDocument] = []
    ids: list[list[int]] = []
    num_empty = num_lost = num_split = num_cut = 0
    for example, tokens in zip(examples, _tokenize(examples, tokenizer), strict=True):
        num_lost += len(example.words) - len(tokens.words)
        num_empty += not tokens.words
        windows = list(_cut(example, tokens, room))
        num_split += len(windows) > 1
        for words, start, stop in windows:
            num_cut += stop - start > room
            ids.append(tokens.ids[start : min(stop, start + room)])
            places = tuple(tokens.firsts[word] - start + _NUM_BEFORE for word in words)
            documents.append(TaggedDocument(example.take([tokens.words[word] for word in words]), places))
    if not documents:
        raise InputError(f"no word up to {examples[-1].place} has a token of the model's vocabulary; check the columns")
    notes = [
        (num_split, f"sentences have more than {max_length} tokens and are split between words"),
        (num_cut, f"words have more than {room} tokens and lose their end"),
        (num_lost, "words have no token and are left out"),
    ]
    store = TokenStore.from_documents(ids, tokenizer.vocab_size)
    said = tuple(f"{count:,} {what}" for count, what in notes if count)
    return Features(store, documents, num_cut=0, num_empty=num_empty, notes=said)


def _tokenize(examples: Sequence[TaggedSentence], tokenizer: Tokenizer) -> Iterator[_Tokens]:
    remaining = iter(examples)
    for texts in group_texts((_BETWEEN_WORDS.join(example.words) for example in examples), CHUNK_CHARS):
        for text, encoding in zip(texts, tokenizer.encode_spans(texts), strict=True):
            yield _find_words(next(remaining).words, text, encoding.ids, encoding.offsets)


def _find_words(words: Sequence[str], text: str, ids: list[int], spans: Sequence[tuple[int, int]]) -> _Tokens:
    """A token belongs to the word of its first character; a word may so be left without a token."""
    starts = [0, *accumulate(len(word) + len(_BETWEEN_WORDS) for word in words[:-1])]
    tokens = _Tokens(ids, [], [])
    for number, (start, stop) in enumerate(spans):
        while start < stop and text[start].isspace():
            start += 1
        if start == stop:
            continue
        word = bisect_right(starts, start) - 1
        if not tokens.words or tokens.words[-1] < word:
            tokens.words.append(word)
            tokens.firsts.append(number)
    return tokens


def _cut(example: TaggedSentence, tokens: _Tokens, room: int) -> Iterator[tuple[range, int, int]]:
    """Windows of words that have tokens, each with its first token and the one behind its last."""
    num_words, num_tokens = len(tokens.words), len(tokens.ids)
    start, first = 0, 0
    while first < num_words:
        stop = num_words
        if num_tokens - start > room:
            # The last word whose tokens still fit ends before the first token of `stop`.
            stop = max(first + 1, bisect_right(tokens.firsts, start + room) - 1)
            stop = _leave_entity(example, tokens.words, first, stop)
        end = tokens.firsts[stop] if stop < num_words else num_tokens
        yield range(first, stop), start, end
        first, start = stop, end


def _leave_entity(example: TaggedSentence, words: Sequence[int], first: int, stop: int) -> int:
    """The last place up to `stop` that is not inside an entity; `stop` itself if there is none."""
    for place in range(stop, first, -1):
        if place == len(words) or not goes_on(example.tags[words[place] - 1], example.tags[words[place]]):
            return place
    return stop
