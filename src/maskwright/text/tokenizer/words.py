"""Words among tokens: where they begin, and how a vocabulary spells them.

A word is what the tokenizer's pre-tokenizer splits off, as `Encoding.word_ids` numbers it. Reading these numbers from
the library makes tokenizing a quarter slower. For the common kinds of tokenizers a table, built once, tells from the
tokens themselves where words begin; for the other kinds the library's numbers are read.
"""

from __future__ import annotations

import json
import string
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import decoders

from maskwright.text.tokenizer.tokenizer import Tokenizer

METASPACE = "\u2581"
_BYTE_SPACE = "\u0120"
"""How SentencePiece and byte-level tokenizers write the space before a word."""


_CONTRACTIONS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")
"""What the pattern cuts off before it looks for letters."""
_SPACE, _BLANK, _LETTER, _NUMBER, _OTHER = range(5)
_BREAK = 0
"""The byte an added token stands for: a word of its own between the others."""


@dataclass(frozen=True)
class ByteLevelWords:
    """Words of byte-level tokenizers, by GPT-2's pattern applied to the bytes of the tokens.

    A word is letters, numbers or other characters in a row, with one space before them (Radford et al. 2019). Several
    tokens may share a character, so tokens are joined to characters first. Stored are the bytes of all tokens, one
    token after another, where each token's bytes begin and how many they are.
    """

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


class WordBoundaries(Protocol):
    """Finds the first tokens of words among the ids of many texts."""

    @property
    def needs_word_ids(self) -> bool:
        """Whether the library's word numbers must be given."""

    def find(
        self, ids: NDArray[np.integer], text_starts: NDArray[np.integer], word_ids: NDArray[np.integer] | None
    ) -> NDArray[np.bool_]:
        """True at the first tokens of words; `text_starts` are the places of texts' first tokens."""


@dataclass(frozen=True)
class MarkedWords:
    """For tokens that show whether a word begins with them or ends with them."""

    begins: NDArray[np.bool_]
    ends: NDArray[np.bool_]
    needs_word_ids: bool

    def find(
        self, ids: NDArray[np.integer], text_starts: NDArray[np.integer], word_ids: NDArray[np.integer] | None
    ) -> NDArray[np.bool_]:
        starts = np.ones(len(ids), dtype=bool)
        starts[1:] = self.begins[ids[1:]] | self.ends[ids[:-1]]
        if word_ids is not None:
            starts[1:] |= word_ids[1:] != word_ids[:-1]
        starts[text_starts] = True
        return starts


def build_boundaries(tokenizer: Tokenizer) -> WordBoundaries:
    settings = json.loads(tokenizer.backend.to_str())
    vocabulary = tokenizer.backend.get_vocab(with_added_tokens=True)
    added_ids = [token["id"] for token in settings["added_tokens"]]
    steps = _list_steps(settings["pre_tokenizer"])
    if _list_types(steps) == ["ByteLevel"] and steps[0]["use_regex"]:
        return ByteLevelWords.build(vocabulary, added_ids, tokenizer.vocab_size)
    find_marks = _choose_marks(settings["model"], steps)
    needs_word_ids = find_marks is None
    if find_marks is None:  # the library's words, but a text that it never splits is more than one word
        space = _BYTE_SPACE if _list_types(steps) == ["ByteLevel"] else METASPACE
        find_marks = partial(_find_space, space=space)
    begins, ends = np.zeros((2, tokenizer.vocab_size), dtype=bool)
    for token, token_id in vocabulary.items():
        begins[token_id], ends[token_id] = find_marks(token)
    begins[added_ids] = ends[added_ids] = True
    return MarkedWords(begins, ends, needs_word_ids)


_Marks = tuple[bool, bool]
"""Whether a word begins with a token, and whether one ends with it."""


def _choose_marks(model: dict[str, Any], steps: list[dict[str, Any]]) -> Callable[[str], _Marks] | None:
    """The rule that gives the pre-tokenizer's words from tokens alone; None where there is none."""
    if model["type"] == "WordLevel":
        return lambda token: (True, True)
    if model["type"] == "WordPiece" and model["continuing_subword_prefix"]:
        return lambda token: (not token.startswith(model["continuing_subword_prefix"]), False)
    if _is_told_by_spaces(steps):
        return _find_punctuation if "Punctuation" in _list_types(steps) else _find_space
    return None


def _list_steps(pre_tokenizer: dict[str, Any] | None) -> list[dict[str, Any]]:
    if pre_tokenizer is None:
        return []
    if pre_tokenizer["type"] == "Sequence":
        return [step for part in pre_tokenizer["pretokenizers"] for step in _list_steps(part)]
    return [pre_tokenizer]


def _list_types(steps: list[dict[str, Any]]) -> list[str]:
    return [step["type"] for step in steps]


def _is_told_by_spaces(steps: list[dict[str, Any]]) -> bool:
    """Whether every word but a text's first begins with SentencePiece's mark or is a punctuation character."""
    marks = [step for step in steps if step["type"] == "Metaspace"]
    others = {step["type"]: step for step in steps if step["type"] != "Metaspace"}
    if len(marks) != 1 or not marks[0]["split"] or marks[0]["replacement"] != METASPACE:
        return False
    is_known = others.keys() <= {"WhitespaceSplit", "Punctuation"}
    is_isolated = others.get("Punctuation", {}).get("behavior", "Isolated") == "Isolated"
    keeps_spaces = "WhitespaceSplit" not in others or marks[0]["prepend_scheme"] == "always"
    return is_known and is_isolated and keeps_spaces


def _find_space(token: str, space: str = METASPACE) -> _Marks:
    return token.startswith(space), False


def _find_punctuation(token: str) -> _Marks:
    if len(token) == 1 and (token in string.punctuation or unicodedata.category(token).startswith("P")):
        return True, True
    return _find_space(token)


@dataclass(frozen=True)
class Spelling:
    """A word's spelling is what the pre-tokenizer hands to the model: `word`, `Ġword` or `▁word`."""

    continuation: str
    """What pieces inside a word begin with, `##` in BERT; often nothing."""
    is_byte_level: bool

    def join(self, pieces: Sequence[str]) -> str:
        """The spelling of the word that was cut into these pieces."""
        first, *others = pieces
        return first + "".join(piece.removeprefix(self.continuation) for piece in others)

    def read(self, spelling: str) -> str:
        """The text a spelling stands for, with the space before it if it carries one."""
        if self.is_byte_level:
            return str(decoders.ByteLevel().decode([spelling]))
        return spelling.replace(METASPACE, " ")


def find_spelling(tokenizer: Tokenizer) -> Spelling:
    model = json.loads(tokenizer.backend.to_str())["model"]
    return Spelling(model.get("continuing_subword_prefix") or "", "ByteLevel" in str(tokenizer.backend.pre_tokenizer))


def cut_word(tokenizer: Tokenizer, spelling: str) -> list[int]:
    """The ids of one word, given by its spelling."""
    if tokenizer.kind == "WordPiece":  # its added words are found before the model sees them
        return tokenizer.encode_batch([spelling])[0]
    return [piece.id for piece in tokenizer.backend.model.tokenize(spelling)]
