"""Words of byte-level tokenizers: GPT-2's pattern, worked out on the bytes of the tokens.

A word is letters, numbers or other characters in a row, with one space before them (Radford et al. 2019). A character
may be shared out over several tokens, so tokens are put together to characters first.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

_CONTRACTIONS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")
"""What the pattern cuts off before it looks for letters."""
_SPACE, _BLANK, _LETTER, _NUMBER, _OTHER = range(5)
_BREAK = 0
"""The byte an added token stands for: a word of its own between the others."""


@dataclass(frozen=True)
class ByteLevelWords:
    """The bytes of all tokens one after another, where each token's begin and how many they are."""

    bytes: NDArray[np.uint8]
    begins: NDArray[np.int64]
    sizes: NDArray[np.int64]
    is_added: NDArray[np.bool_]
    is_contraction: NDArray[np.bool_]
    needs_word_ids: bool = False

    @classmethod
    def build(cls, vocabulary: Mapping[str, int], added_ids: Sequence[int], vocab_size: int) -> ByteLevelWords:
        contents = [b""] * vocab_size
        is_added, is_contraction = np.zeros((2, vocab_size), dtype=bool)
        for token, token_id in vocabulary.items():
            contents[token_id] = bytes(_BYTES.get(character, _BREAK) for character in token)
            is_contraction[token_id] = token in _CONTRACTIONS
        for token_id in added_ids:
            contents[token_id] = bytes([_BREAK])
            is_added[token_id] = True
        sizes = np.asarray([len(content) for content in contents], dtype=np.int64)
        flat = np.frombuffer(b"".join(contents), dtype=np.uint8)
        return cls(flat, np.cumsum(sizes) - sizes, sizes, is_added, is_contraction)

    def find(
        self, ids: NDArray[np.integer], text_starts: NDArray[np.integer], word_ids: NDArray[np.integer] | None
    ) -> NDArray[np.bool_]:
        sizes = self.sizes[ids]
        firsts = np.cumsum(sizes) - sizes
        stream = self.bytes[np.repeat(self.begins[ids] - firsts, sizes) + np.arange(int(sizes.sum()))]
        kinds, is_inside = _classify_bytes(stream)
        found = ~is_inside[firsts] & _find_starts(stream, kinds, firsts, firsts[text_starts])
        is_added = self.is_added[ids]
        found[1:] |= is_added[1:] | is_added[:-1] | self.is_contraction[ids[:-1]]
        found[text_starts] = True
        return found


def _classify_bytes(stream: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """The kind of the character each byte is part of, and which bytes are not the first of theirs."""
    kinds = _classify_characters()[stream]
    is_inside = np.zeros(len(stream), dtype=bool)
    places = np.flatnonzero(stream >= 0x80)
    text = stream[places].tobytes().decode(errors="surrogateescape")
    codes = np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype=np.uint32)
    # A byte outside any character, as a vocabulary without some bytes leaves them, is escaped as one character.
    is_escaped = (codes >= 0xDC80) & (codes < 0xDD00)
    sizes = np.where(is_escaped, 1, 2 + (codes >= 0x800) + (codes >= 0x10000))
    kinds[places] = np.repeat(_classify_characters()[codes], sizes)
    is_inside[places] = True
    is_inside[places[np.cumsum(sizes) - sizes]] = False
    return kinds, is_inside


def _find_starts(
    stream: NDArray[np.uint8], kinds: NDArray[np.uint8], firsts: NDArray[np.int64], text_starts: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Whether a word begins at some bytes; the last blank of several goes with what follows, or alone."""
    is_end = np.zeros(len(stream) + 1, dtype=bool)
    is_end[text_starts], is_end[-1] = True, True
    lead = stream[firsts]
    after = np.minimum(firsts + 1 + (lead >= 0xC0) + (lead >= 0xE0) + (lead >= 0xF0), len(stream))
    before, here, next_kind = kinds[firsts - 1], kinds[firsts], np.append(kinds, _BLANK).astype(np.uint8)[after]
    is_followed = (next_kind > _BLANK) & ~is_end[after]
    blank_starts = (before > _BLANK) | is_followed
    return np.where(here <= _BLANK, blank_starts, (before != here) & (before != _SPACE))


@cache
def _classify_characters() -> NDArray[np.uint8]:
    """The kind of every code point."""
    kinds = np.full(0x110000, _OTHER, dtype=np.uint8)
    kinds[0x20000:0x40000] = _LETTER  # planes of Chinese characters alone
    for code in range(0x20000):
        character = chr(code)
        category = unicodedata.category(character)[0]
        if character.isspace():
            kinds[code] = _BLANK
        elif category in "LN":
            kinds[code] = _LETTER if category == "L" else _NUMBER
    kinds[ord(" ")], kinds[_BREAK] = _SPACE, _BLANK
    return kinds


def _map_bytes() -> dict[str, int]:
    """The characters that byte-level tokenizers write bytes as: printable ones as themselves, others from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTES = _map_bytes()
