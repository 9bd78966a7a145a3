"""Where words begin: a word is what the tokenizer's pre-tokenizer cuts off, as `Encoding.word_ids` numbers it.

Asking the library for these numbers makes tokenizing a quarter slower. For the common kinds of tokenizers the tokens
themselves tell where words begin, by a table made once; others are asked.
"""

from __future__ import annotations

import json
import string
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from maskwright.text.tokenizer.byte_words import ByteLevelWords
from maskwright.text.tokenizer.tokenizer import Tokenizer

_METASPACE = "\u2581"
_BYTE_SPACE = "\u0120"
"""How SentencePiece and byte-level tokenizers write the space before a word."""


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
        space = _BYTE_SPACE if _list_types(steps) == ["ByteLevel"] else _METASPACE
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
    if len(marks) != 1 or not marks[0]["split"] or marks[0]["replacement"] != _METASPACE:
        return False
    is_known = others.keys() <= {"WhitespaceSplit", "Punctuation"}
    is_isolated = others.get("Punctuation", {}).get("behavior", "Isolated") == "Isolated"
    keeps_spaces = "WhitespaceSplit" not in others or marks[0]["prepend_scheme"] == "always"
    return is_known and is_isolated and keeps_spaces


def _find_space(token: str, space: str = _METASPACE) -> _Marks:
    return token.startswith(space), False


def _find_punctuation(token: str) -> _Marks:
    if len(token) == 1 and (token in string.punctuation or unicodedata.category(token).startswith("P")):
        return True, True
    return _find_space(token)
