"""How a tokenizer splits texts, and which words of a domain are worth adding to its vocabulary."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from maskwright.errors import InputError
from maskwright.text.tokenizer.encode import EncodedTexts, encode_texts
from maskwright.text.tokenizer.tokenizer import CHUNK_CHARS, Tokenizer, group_texts
from maskwright.text.tokenizer.words import METASPACE, build_boundaries, cut_word, find_spelling

MANY_PIECES = 3
"""A word with this many tokens counts as fragmented."""
_REPLACEMENT_CHARACTER = "\ufffd"


@dataclass(frozen=True)
class Fragmentation:
    """Statistics of tokens per word. Words are pieces of the pre-tokenizer with a letter or a digit; punctuation is not
    counted.
    """

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
    """Accumulates the fragmentation of several lists of texts by one tokenizer."""

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


DEFAULT_MAX_TOKENS = 1000
DEFAULT_MIN_COUNT = 20
_MAX_COUNTED = 1_000_000
"""Different words that are counted at a time, some 100 bytes each."""
_ADDRESS = re.compile(r"\S*(?:://|www\.|@)\S*")


@dataclass(frozen=True)
class DomainToken:
    """A word to add to a vocabulary."""

    spelling: str
    """As the vocabulary will hold it, with the space before it: `word`, `Ġword` or `▁word`."""
    word: str
    count: int
    pieces: tuple[str, ...]
    """The word's current tokens."""

    @property
    def tokens_saved(self) -> int:
        return self.count * (len(self.pieces) - 1)


def choose_domain_tokens(
    texts: Iterable[str],
    tokenizer: Tokenizer,
    max_tokens: int = DEFAULT_MAX_TOKENS,
    min_count: int = DEFAULT_MIN_COUNT,
    min_pieces: int = MANY_PIECES,
) -> list[DomainToken]:
    """The words that would save most tokens, best first; ties go by the alphabet.

    A word is what the tokenizer's own normalizer and pre-tokenizer cut off, made of letters (and the marks on them)
    alone: no digits, no punctuation, nothing out of an address (`://`, `www.`, `@`), nothing with an unknown token.
    A word-level tokenizer cuts no word, so nothing is chosen for it.

    Texts are streamed. A million different words are counted at a time; when there are more, the rarer half is
    forgotten, so a count can be too low by what a rare word had then.
    """
    for name, value, least in (
        ("max_tokens", max_tokens, 1),
        ("min_count", min_count, 1),
        ("min_pieces", min_pieces, 2),
    ):
        if value < least:
            raise InputError(f"{name} is {value}; it must be at least {least}")
    if tokenizer.kind == "WordLevel":
        return []
    counts = _count_spellings(texts, tokenizer, min_pieces)
    spelling = find_spelling(tokenizer)
    chosen = []
    for spelled, count in counts.items():
        ids = cut_word(tokenizer, spelled) if count >= min_count else []
        if len(ids) >= min_pieces and tokenizer.unk_token_id not in ids:
            pieces = tuple(tokenizer.token(token_id) for token_id in ids)
            chosen.append(DomainToken(spelled, spelling.read(spelled).strip(), count, pieces))
    return sorted(chosen, key=lambda token: (-token.tokens_saved, token.word, token.spelling))[:max_tokens]


def _count_spellings(texts: Iterable[str], tokenizer: Tokenizer, min_pieces: int) -> Counter[str]:
    """How often each word of letters occurs, of those with so many pieces."""
    boundaries = build_boundaries(tokenizer)
    by_ids: Counter[bytes] = Counter()
    for group in group_texts((_ADDRESS.sub(" ", text) for text in texts), CHUNK_CHARS):
        by_ids.update(_list_words(encode_texts(group, tokenizer, boundaries), min_pieces))
        forget_rare(by_ids, _MAX_COUNTED)
    spelling = find_spelling(tokenizer)
    counts: Counter[str] = Counter()
    for key, count in by_ids.items():
        ids = np.frombuffer(key, dtype=np.uint32).tolist()
        if tokenizer.unk_token_id in ids:
            continue
        spelled = spelling.join([tokenizer.token(token_id) for token_id in ids])
        if tokenizer.kind == "Unigram":
            spelled = _strip_tail(spelled)
            if not spelled.startswith(METASPACE):  # a piece without the mark would match inside other words too
                continue
        if _is_letters(spelling.read(spelled).removeprefix(" ")):
            counts[spelled] += count
    return counts


def _list_words(encoded: EncodedTexts, min_pieces: int) -> Iterator[bytes]:
    """The ids of each word with so many pieces, as bytes."""
    starts, sizes = locate_words(encoded.word_starts)
    is_cut = sizes >= min_pieces
    ids, width = encoded.ids.tobytes(), encoded.ids.itemsize
    for start, size in zip(starts[is_cut].tolist(), sizes[is_cut].tolist(), strict=True):
        yield ids[start * width : (start + size) * width]


def forget_rare(counts: Counter[bytes], limit: int) -> None:
    """Drop the rarer half of more than `limit` words, with all that are as rare as the last of it."""
    if len(counts) <= limit:
        return
    bound = sorted(counts.values())[len(counts) // 2]
    for key in [key for key, count in counts.items() if count <= bound]:
        del counts[key]


def _strip_tail(spelled: str) -> str:
    """Without the punctuation that sticks to a word where the pre-tokenizer leaves it there."""
    end = len(spelled)
    while end and unicodedata.category(spelled[end - 1])[0] not in "LMN":
        end -= 1
    return spelled[:end]


def _is_letters(word: str) -> bool:
    return bool(word) and all(unicodedata.category(character)[0] in "LM" for character in word)
