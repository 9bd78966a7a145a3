"""How a tokenizer cuts texts up: the figures that tell whether a vocabulary fits a domain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from maskwright.text.encoding import encode_texts
from maskwright.text.tokenizer import Tokenizer
from maskwright.text.words import build_boundaries

MANY_PIECES = 3
"""From here on a word counts as badly cut."""
_REPLACEMENT_CHARACTER = "\ufffd"


@dataclass(frozen=True)
class Fragmentation:
    """Words are what the pre-tokenizer cuts off and what holds a letter or a digit; punctuation is not counted."""

    num_texts: int = 0
    num_tokens: int = 0
    """All tokens, those of punctuation too."""
    num_unknown: int = 0
    num_words: int = 0
    num_word_tokens: int = 0
    num_fragmented: int = 0
    """Words of `MANY_PIECES` tokens or more."""

    @property
    def tokens_per_word(self) -> float:
        return self.num_word_tokens / max(self.num_words, 1)

    @property
    def fragmented_share(self) -> float:
        return self.num_fragmented / max(self.num_words, 1)


class FragmentationMeter:
    """Adds up how one tokenizer cuts one list of texts after another."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._boundaries = build_boundaries(tokenizer)
        self._is_wordlike = _find_wordlike(tokenizer)
        self._sums = np.zeros(6, dtype=np.int64)

    @property
    def figures(self) -> Fragmentation:
        return Fragmentation(*self._sums.tolist())

    def add(self, texts: Sequence[str]) -> None:
        encoded = encode_texts(list(texts), self._tokenizer, self._boundaries)
        ids = encoded.ids
        num_unknown = np.count_nonzero(ids == self._tokenizer.unk_token_id)
        self._sums[:3] += np.array([len(texts), len(ids), num_unknown])
        if len(ids):
            starts, sizes = locate_words(encoded.word_starts)
            sizes = sizes[np.logical_or.reduceat(self._is_wordlike[ids], starts)]
            self._sums[3:] += np.array([len(sizes), sizes.sum(), np.count_nonzero(sizes >= MANY_PIECES)])


def locate_words(word_starts: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where words begin and how many tokens they have."""
    starts = np.flatnonzero(word_starts)
    return starts, np.diff(np.append(starts, len(word_starts)))


def _find_wordlike(tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """By id: whether a token holds a letter or a digit; part of a character, and the unknown token, count as such."""
    is_wordlike = np.zeros(tokenizer.vocab_size, dtype=bool)
    for token_id in range(tokenizer.vocab_size):
        text = tokenizer.decode([token_id], skip_special_tokens=False)
        is_wordlike[token_id] = _REPLACEMENT_CHARACTER in text or any(map(str.isalnum, text))
    is_wordlike[tokenizer.unk_token_id] = True
    return is_wordlike
