"""Exact and near duplicates of documents; deterministic, and the first of several is kept.

Near duplicates: MinHash (Broder 1997) over runs of five words, found by banding (Leskovec, Rajaraman, Ullman, "Mining
of Massive Datasets", section 3.4) and confirmed by the similarity that the signatures estimate. A document is one if it
is similar to the first document with the same band, whether that one is kept or itself a duplicate: so the verdict on a
document depends on its bands alone, not on other verdicts, and tasks (`runs/duplicate_tasks.py`) come to the same ones
as a single pass. Texts are arrays of code points here, each of a kind.
"""

from __future__ import annotations

import sys
import unicodedata
from functools import cache
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

BLANK, LETTER, IDEOGRAPH, NUMBER, SYMBOL, OTHER = range(6)
"""LETTER includes marks, such as the vowel signs of many scripts; IDEOGRAPH means letters of scripts without spaces."""

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


Words32 = NDArray[np.uint32]
Words16 = NDArray[np.uint16]
Words64 = NDArray[np.uint64]

NUM_HASHES = 128
SHINGLE_WORDS = 5
_BAND_RECALL = 0.95
_SHINGLES_AT_ONCE = 2048
_PLACE_STEP = np.uint32(0x9E3779B1)
_MAX_LOAD = 0.7
_FIRST_SLOTS = 4096
_FIRST_SIGNATURES = 64
_KEY_STEP = np.uint64(0x9E3779B97F4A7C15)
_CHARS_AT_ONCE = 1 << 20


class ExactDuplicates:
    """Digests of 64 bits of the documents seen: 60 to 90 bytes of memory per document.

    Among N documents, N**2 / 2**65 pairs share a digest by chance: 0.0003 for a hundred million.
    """

    def __init__(self) -> None:
        self._digests: set[int] = set()

    def is_new(self, text: str) -> bool:
        """Whether the text is new; it is then remembered."""
        digest = compute_digest(text)
        num_before = len(self._digests)
        self._digests.add(digest)
        return len(self._digests) > num_before


class NearDuplicates:
    """Signatures and bands of the documents seen: 0.6 to 1.2 KB of memory per different one, whatever its length.

    The similarity is an estimate with a standard error of at most 0.045 (0.035 at 0.8), and a pair of exactly the
    threshold's similarity meets in a band with a probability of about 0.9; more similar pairs are surer.
    """

    def __init__(self, similarity: float = 0.8) -> None:
        self.similarity = similarity
        self._num_stored = 0
        self._signatures: Words16 = np.zeros((_FIRST_SIGNATURES, NUM_HASHES), dtype=np.uint16)
        self._num_keys = 0
        self._keys: Words64 = np.zeros(_FIRST_SLOTS, dtype=np.uint64)
        self._firsts = np.full(_FIRST_SLOTS, -1, dtype=np.int32)
        """In the slot of a band's key, by linear probing: the first document with it."""

    def is_new(self, text: str) -> bool:
        """Whether the text is similar to no first document of its bands; it becomes the first of those without one."""
        signature = compute_signature(text)
        keys = compute_band_keys(signature[None], self.similarity)[0]
        firsts = self._firsts[self._find_slots(keys)]
        candidates = np.unique(firsts[firsts >= 0])
        is_new = not (
            candidates.size and estimate_similarity(self._signatures[candidates], signature).max() >= self.similarity
        )
        if (firsts < 0).any():
            self._store(signature, keys[firsts < 0])
        return is_new

    def _store(self, signature: Words16, keys: Words64) -> None:
        if self._num_stored == len(self._signatures):
            self._signatures = np.concatenate([self._signatures, np.zeros_like(self._signatures)])
        self._signatures[self._num_stored] = signature
        if self._num_keys + keys.size > _MAX_LOAD * self._keys.size:
            is_used = self._firsts >= 0
            used_keys, used_firsts = self._keys[is_used], self._firsts[is_used]
            self._keys = np.zeros(2 * self._keys.size, dtype=np.uint64)
            self._firsts = np.full(self._keys.size, -1, dtype=np.int32)
            self._insert(used_keys, used_firsts)
        self._insert(keys, np.full(keys.size, self._num_stored, dtype=np.int32))
        self._num_keys += keys.size
        self._num_stored += 1

    def _insert(self, keys: Words64, firsts: NDArray[np.int32]) -> None:
        while keys.size:
            slots = self._find_slots(keys)  # several new keys may find the same empty slot, of which one gets it
            self._keys[slots], self._firsts[slots] = keys, firsts
            is_left = self._keys[slots] != keys
            keys, firsts = keys[is_left], firsts[is_left]

    def _find_slots(self, keys: Words64) -> NDArray[np.int64]:
        """Where the table has the keys, or where it is empty and would have them."""
        last = self._keys.size - 1
        slots = (keys & np.uint64(last)).astype(np.int64)
        while (is_other := (self._firsts[slots] >= 0) & (self._keys[slots] != keys)).any():
            slots[is_other] = (slots[is_other] + 1) & last
        return slots


def compute_digest(text: str) -> int:
    """64 bits that equal texts share."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def compute_band_keys(signatures: Words16, similarity: float) -> Words64:
    """(documents, bands): a key for every band; documents that agree in a band share its key."""
    rows = choose_rows_per_band(similarity)
    num_bands = NUM_HASHES // rows
    bands = signatures[:, : num_bands * rows].astype(np.uint64).reshape(-1, num_bands, rows)
    state = np.broadcast_to(np.arange(num_bands, dtype=np.uint64), bands.shape[:2])
    for row in range(rows):
        state = _mix64(state * _KEY_STEP + bands[:, :, row] + np.uint64(1))
    return state


def compute_signature(text: str) -> Words16:
    """`NUM_HASHES` minima over the text's shingles, each under its own hash function, of which 16 bits are kept."""
    shingles = compute_shingles(text)
    minima = np.full(NUM_HASHES, np.iinfo(np.uint32).max, dtype=np.uint32)
    for start in range(0, len(shingles), _SHINGLES_AT_ONCE):
        hashes = _MULTIPLIERS[:, None] * shingles[None, start : start + _SHINGLES_AT_ONCE]
        hashes += _ADDENDS[:, None]
        np.minimum(minima, hashes.min(axis=1), out=minima)
    return (minima & np.uint32(0xFFFF)).astype(np.uint16)


def compute_shingles(text: str) -> Words32:
    """A hash for every run of `SHINGLE_WORDS` words in place, case and punctuation aside; of a shorter text, one."""
    text = text.lower()
    starts = range(0, max(len(text), 1), _CHARS_AT_ONCE)
    words = np.concatenate([_hash_words(text[start : start + _CHARS_AT_ONCE]) for start in starts])
    if not words.size:  # nothing but punctuation
        words = code_points(text)
    width = min(SHINGLE_WORDS, len(words))
    num_shingles = len(words) - width + 1
    state = np.zeros(num_shingles, dtype=np.uint32)
    for place in range(width):
        state = _mix(state + words[place : place + num_shingles] + np.uint32(place + 1))
    return state


def _hash_words(text: str) -> Words32:
    """A hash per word: a run of letters and digits, or one character in scripts without blanks between words."""
    codes = code_points(text)
    kinds = character_kinds(codes)
    places = np.flatnonzero((kinds == LETTER) | (kinds == NUMBER) | (kinds == IDEOGRAPH))
    if not places.size:
        return np.zeros(0, dtype=np.uint32)
    codes, is_alone = codes[places], kinds[places] == IDEOGRAPH
    is_first = np.ones(places.size, dtype=bool)
    is_first[1:] = (np.diff(places) > 1) | is_alone[1:] | is_alone[:-1]
    firsts = np.flatnonzero(is_first)
    inner_places = np.arange(places.size) - np.repeat(firsts, np.diff(firsts, append=places.size))
    letters = _mix(codes + inner_places.astype(np.uint32) * _PLACE_STEP)
    return np.add.reduceat(letters, firsts, dtype=np.uint32)


def estimate_similarity(signatures: Words16, signature: Words16) -> NDArray[np.float64]:
    """The Jaccard similarity of one text's shingles with those of each of the others."""
    return (signatures == signature).mean(axis=-1)


def choose_rows_per_band(similarity: float) -> int:
    """The longest bands, so the fewest chance meetings, in which a pair at the threshold still meets surely enough."""
    for rows in range(NUM_HASHES // 4, 1, -1):
        if 1 - (1 - similarity**rows) ** (NUM_HASHES // rows) >= _BAND_RECALL:
            return rows
    return 1


def _mix(state: Words32) -> Words32:
    """The finaliser of MurmurHash3 (Appleby 2011), in wrapping 32-bit arithmetic."""
    state = (state ^ (state >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    state = (state ^ (state >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return state ^ (state >> np.uint32(16))


def _mix64(state: Words64) -> Words64:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014)."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def _draw_constants(first: int) -> Words32:
    return _mix(_mix(np.arange(first, first + NUM_HASHES, dtype=np.uint32)) + np.uint32(first))


_MULTIPLIERS: Words32 = _draw_constants(1) | np.uint32(1)
_ADDENDS: Words32 = _draw_constants(1 + NUM_HASHES)
