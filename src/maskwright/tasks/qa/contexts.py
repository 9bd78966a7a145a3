"""Contexts as tokens that know their characters, so that answers go from one to the other and back. T tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.tasks.qa.answer_search import Span
from maskwright.text.tokenizer.tokenizer import CHUNK_CHARS, Tokenizer, group_texts

Ints = NDArray[np.int64]
_SPACELESS = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
"""Scripts that put no blanks between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese."""


@dataclass(frozen=True)
class EncodedContext:
    text: str
    ids: list[int]
    starts: Ints
    """(T,) the first character of each token, blanks aside."""
    ends: Ints
    """(T,) the character behind its last; the same where a token has no characters of its own."""
    word_starts: Ints
    """(T,) the first character of the word that a token belongs to."""
    word_ends: Ints

    def find_tokens(self, span: Span) -> tuple[int, int] | None:
        """The first and the last token that hold some of these characters."""
        first = int(np.searchsorted(self.ends, span[0], side="right"))
        last = int(np.searchsorted(self.starts, span[1], side="left")) - 1
        return (first, last) if first <= last else None

    def find_characters(self, first: int, last: int) -> Span:
        """What the words from one token to another say: answers begin and end with whole words."""
        return _trim(self.text, int(self.word_starts[first]), int(self.word_ends[last]))


def encode_contexts(texts: Iterable[str], tokenizer: Tokenizer) -> dict[str, EncodedContext]:
    """Each different context once."""
    encoded = {}
    for chunk in group_texts(dict.fromkeys(texts), CHUNK_CHARS):
        for text, encoding in zip(chunk, tokenizer.encode_spans(chunk), strict=True):
            encoded[text] = _read_encoding(text, encoding)
    return encoded


def _read_encoding(text: str, encoding: Any) -> EncodedContext:
    places = np.asarray([_trim(text, *offsets) for offsets in encoding.offsets], dtype=np.int64).reshape(-1, 2)
    starts, ends = places[:, 0].copy(), places[:, 1].copy()
    # A token of no word, such as an added one, is a word of its own: each such number is different.
    words = np.asarray([-1 - place if word is None else word for place, word in enumerate(encoding.word_ids)], np.int64)
    if not len(words):
        return EncodedContext(text, [], starts, ends, starts, ends)
    firsts = np.flatnonzero(np.diff(words, prepend=words[0] - 1))
    lengths = np.diff(firsts, append=len(words))
    word_starts = np.repeat(np.minimum.reduceat(starts, firsts), lengths)
    word_ends = np.repeat(np.maximum.reduceat(ends, firsts), lengths)
    if _SPACELESS.search(text):
        pairs = zip(word_starts.tolist(), word_ends.tolist(), strict=True)
        is_spaceless = np.asarray([_SPACELESS.search(text, *pair) is not None for pair in pairs])
        word_starts, word_ends = np.where(is_spaceless, starts, word_starts), np.where(is_spaceless, ends, word_ends)
    return EncodedContext(text, encoding.ids, starts, ends, word_starts, word_ends)


def _trim(text: str, start: int, end: int) -> Span:
    """Without blanks on either side; some tokenizers count the blank before a word as the word's."""
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end
