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
from collections.abc import Iterator, Sequence
from functools import cache
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLANK, LETTER, IDEOGRAPH, NUMBER, SYMBOL, OTHER = range(6)
"""LETTER includes marks, such as the vowel signs of many scripts; IDEOGRAPH means letters of scripts without spaces.

Words are made of the kinds from LETTER to NUMBER.
"""

NUM_KINDS = OTHER + 1
_KIND_OF_CATEGORY = {"L": LETTER, "M": LETTER, "N": NUMBER, "S": SYMBOL}
_IDEOGRAPHS = ((0x3041, 0x30FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x323AF))


def code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.uint32, copy=False)


def character_kinds(codes: NDArray[np.uint32]) -> NDArray[np.uint8]:
    return _list_kinds(int(codes.max()).bit_length() if codes.size else 0)[codes]


@cache
def _list_kinds(num_bits: int) -> NDArray[np.uint8]:
    """The kind of every code point of so many bits: at most a megabyte, built in a second when first asked for."""
    size = min(1 << num_bits, sys.maxunicode + 1)
    kinds = np.fromiter(map(_kind, map(chr, range(size))), dtype=np.uint8, count=size)
    for first, last in _IDEOGRAPHS:
        block = kinds[first : last + 1]
        block[block == LETTER] = IDEOGRAPH
    return kinds


@cache
def _ascii_kinds() -> bytes:
    return bytes(_list_kinds(8))


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
_SHINGLES_AT_ONCE = 8192
_HASHES_AT_ONCE = 32
"""With as many shingles, a megabyte: what a core's second cache holds."""
_GROUP_CHARS = 1 << 16
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
    return compute_signatures([text])[0]


def compute_signatures(texts: Sequence[str]) -> Words16:
    """(texts, hashes): minima over each text's shingles, each under its own hash function, of which 16 bits are kept.

    Many texts at once are several times faster than one after another.
    """
    signatures = np.empty((len(texts), NUM_HASHES), dtype=np.uint16)
    for first, end in _group_texts(texts):
        shingles, owners, offsets = _list_shingles(texts[first:end])
        signatures[first + owners] = _compute_minima(shingles, offsets).T  # the low 16 bits
    return signatures


def _group_texts(texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Runs of texts whose characters fit the processor's cache; a longer text is alone."""
    first = num_chars = 0
    for number, text in enumerate(texts):
        if number > first and num_chars + len(text) > _GROUP_CHARS:
            yield first, number
            first, num_chars = number, 0
        num_chars += len(text)
    if first < len(texts):
        yield first, len(texts)


def _compute_minima(shingles: Words32, offsets: NDArray[np.int64]) -> Words32:
    """(hashes, texts): the smallest hash of each text's shingles, which start at its offset."""
    minima = np.full((NUM_HASHES, offsets.size), np.iinfo(np.uint32).max, dtype=np.uint32)
    buffer = np.empty((_HASHES_AT_ONCE, min(shingles.size, _SHINGLES_AT_ONCE)), dtype=np.uint32)
    for start in range(0, shingles.size, _SHINGLES_AT_ONCE):
        some = shingles[start : start + _SHINGLES_AT_ONCE]
        hashes = buffer[:, : some.size]
        first, end = np.searchsorted(offsets, start, "right") - 1, np.searchsorted(offsets, start + some.size)
        places = np.maximum(offsets[first:end] - start, 0)
        for row in range(0, NUM_HASHES, _HASHES_AT_ONCE):
            rows = slice(row, row + _HASHES_AT_ONCE)
            np.multiply(_MULTIPLIERS[rows, None], some, out=hashes)
            np.add(hashes, _ADDENDS[rows, None], out=hashes)
            smallest = minima[rows, first:end]
            np.minimum(smallest, np.minimum.reduceat(hashes, places, axis=1), out=smallest)
    return minima


def compute_shingles(text: str) -> Words32:
    """A hash for every run of `SHINGLE_WORDS` words in place, case and punctuation aside; of a shorter text, one."""
    return _list_shingles([text])[0]


def _list_shingles(texts: Sequence[str]) -> tuple[Words32, NDArray[np.int64], NDArray[np.int64]]:
    """The shingles of texts, the numbers of the texts in the order of their shingles, and where these start."""
    words, counts = _hash_words([text.lower() for text in texts])
    starts = np.cumsum(counts) - counts
    text_of = np.repeat(np.arange(len(texts)), counts)
    last = SHINGLE_WORDS - 1
    pieces = [_hash_runs(words, SHINGLE_WORDS)[text_of[:-last] == text_of[last:]]] if words.size > last else []
    owners = [number for number, count in enumerate(counts) if count > last]
    sizes = [int(counts[number]) - last for number in owners]
    for number in np.flatnonzero(counts <= last).tolist():
        few = words[starts[number] :][: counts[number]]
        if not few.size:  # nothing but punctuation
            few = code_points(texts[number].lower())
        pieces.append(_hash_runs(few, min(SHINGLE_WORDS, few.size)))
        owners.append(number)
        sizes.append(pieces[-1].size)
    ends = np.cumsum(sizes, dtype=np.int64)
    return np.concatenate(pieces), np.array(owners, dtype=np.int64), ends - sizes


def _hash_runs(words: Words32, width: int) -> Words32:
    """A hash for every run of so many words; one if that is none."""
    num_runs = words.size - width + 1
    state = np.zeros(num_runs, dtype=np.uint32)
    for place in range(width):
        state += words[place : place + num_runs]
        state += np.uint32(place + 1)
        _mix(state)
    return state


def _hash_words(texts: Sequence[str]) -> tuple[Words32, NDArray[np.int64]]:
    """A hash for every word of all texts, and how many words each text has."""
    if len(texts) > 1:
        words, starts = _hash_words_of_piece("\n".join(texts))
        ends = np.cumsum([len(text) + 1 for text in texts])
        return words, np.diff(np.searchsorted(starts, ends), prepend=0)
    pieces = range(0, max(len(texts[0]), 1), _CHARS_AT_ONCE)
    words = np.concatenate([_hash_words_of_piece(texts[0][start : start + _CHARS_AT_ONCE])[0] for start in pieces])
    return words, np.array([words.size])


def _hash_words_of_piece(text: str) -> tuple[Words32, NDArray[np.int64]]:
    """A hash per word, and where it starts: a run of letters and digits, or one character in scripts without blanks."""
    if text.isascii():
        content = text.encode("ascii")
        codes: NDArray[Any] = np.frombuffer(content, dtype=np.uint8)
        kinds = np.frombuffer(content.translate(_ascii_kinds()), dtype=np.uint8)
    else:
        codes = code_points(text)
        kinds = character_kinds(codes)
    is_in_word = (kinds >= LETTER) & (kinds <= NUMBER)
    is_first = is_in_word.copy()
    is_first[1:] &= ~is_in_word[:-1]
    is_alone = kinds == IDEOGRAPH
    if is_alone.any():
        is_first |= is_alone
        is_first[1:] |= is_in_word[1:] & is_alone[:-1]
    starts = np.flatnonzero(is_first)
    if not starts.size:
        return np.zeros(0, dtype=np.uint32), starts
    # of every character, its code and its place in the word
    letters = np.arange(codes.size, dtype=np.uint32)
    letters[starts[0] :] -= np.repeat(starts.astype(np.uint32), np.diff(starts, append=codes.size))
    letters *= _PLACE_STEP
    letters += codes
    _mix(letters)
    letters *= is_in_word
    return np.add.reduceat(letters, starts, dtype=np.uint32), starts


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
    """The finaliser of MurmurHash3 (Appleby 2011), in wrapping 32-bit arithmetic and in place."""
    state ^= state >> np.uint32(16)
    state *= np.uint32(0x85EBCA6B)
    state ^= state >> np.uint32(13)
    state *= np.uint32(0xC2B2AE35)
    state ^= state >> np.uint32(16)
    return state


def _mix64(state: Words64) -> Words64:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014)."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def _draw_constants(first: int) -> Words32:
    return _mix(_mix(np.arange(first, first + NUM_HASHES, dtype=np.uint32)) + np.uint32(first))


_MULTIPLIERS: Words32 = _draw_constants(1) | np.uint32(1)
_ADDENDS: Words32 = _draw_constants(1 + NUM_HASHES)
