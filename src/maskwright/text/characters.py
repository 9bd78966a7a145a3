"""Texts as arrays of code points, and the kind of every character."""

from __future__ import annotations

import sys
import unicodedata
from functools import cache

import numpy as np
from numpy.typing import NDArray

BLANK, LETTER, IDEOGRAPH, NUMBER, SYMBOL, OTHER = range(6)
"""LETTER holds marks too, as the vowel signs of many scripts are; IDEOGRAPH, the letters written without blanks."""

NUM_KINDS = OTHER + 1
_KIND_OF_CATEGORY = {"L": LETTER, "M": LETTER, "N": NUMBER, "S": SYMBOL}
_IDEOGRAPHS = ((0x3041, 0x30FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x323AF))


def code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.uint32, copy=False)


def character_kinds(codes: NDArray[np.uint32]) -> NDArray[np.uint8]:
    return _kinds()[codes]


@cache
def _kinds() -> NDArray[np.uint8]:
    """The kind of every code point: one megabyte, built in a third of a second when first asked for."""
    characters = map(chr, range(sys.maxunicode + 1))
    kinds = np.fromiter((_kind(character) for character in characters), dtype=np.uint8, count=sys.maxunicode + 1)
    for first, last in _IDEOGRAPHS:
        block = kinds[first : last + 1]
        block[block == LETTER] = IDEOGRAPH
    return kinds


def _kind(character: str) -> int:
    if character.isspace():
        return BLANK
    return _KIND_OF_CATEGORY.get(unicodedata.category(character)[0], OTHER)
