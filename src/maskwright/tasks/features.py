"""Tokenize examples, each short enough for the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.data.assembly import NUM_SPECIALS
from maskwright.data.given_pairs import PairStore
from maskwright.data.pairs import NUM_PAIR_SPECIALS
from maskwright.data.store import TokenStore
from maskwright.errors import InputError
from maskwright.tasks.examples import Example
from maskwright.text.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Features:
    """The tokens of examples, without special tokens around them."""

    store: TokenStore
    """A `PairStore` for pairs of texts."""
    examples: list[Any]
    """The examples with tokens, one for each document of the store."""
    num_cut: int
    """Examples that were truncated."""
    num_empty: int
    """Examples dropped because a text has no tokens."""
    notes: tuple[str, ...] = field(default=(), kw_only=True)
    """Further notes for the user."""

    @property
    def are_pairs(self) -> bool:
        return isinstance(self.store, PairStore)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Tokens of each example in a row, its special tokens included."""
        return np.diff(self.store.offsets) + (NUM_PAIR_SPECIALS if self.are_pairs else NUM_SPECIALS)


def featurize(examples: Sequence[Example], tokenizer: Tokenizer, max_length: int) -> Features:
    """Texts longer than the model are truncated; in a pair the longer text first, as in BERT."""
    firsts = tokenizer.encode_batch([example.text for example in examples])
    if examples[0].second is None:
        return _featurize_texts(examples, firsts, tokenizer.vocab_size, max_length - NUM_SPECIALS)
    seconds = tokenizer.encode_batch([example.second or "" for example in examples])
    is_kept = [bool(first) and bool(second) for first, second in zip(firsts, seconds, strict=True)]
    between = find_tokens_between(tokenizer)
    pairs = [(first, [*between, *second]) for first, second, kept in zip(firsts, seconds, is_kept, strict=True) if kept]
    kept = _keep(examples, is_kept)
    store = PairStore.from_pairs(pairs, tokenizer.vocab_size, max_length - NUM_PAIR_SPECIALS)
    return Features(store, kept, store.num_cut, len(examples) - len(kept))


def _featurize_texts(
    examples: Sequence[Example], texts: Sequence[Sequence[int]], vocab_size: int, max_tokens: int
) -> Features:
    kept = _keep(examples, [bool(ids) for ids in texts])
    store = TokenStore.from_documents([ids[:max_tokens] for ids in texts], vocab_size)
    num_cut = sum(len(ids) > max_tokens for ids in texts)
    return Features(store, kept, num_cut, len(examples) - len(kept))


def _keep(examples: Sequence[Example], is_kept: Sequence[bool]) -> list[Example]:
    kept = [example for example, keeps in zip(examples, is_kept, strict=True) if keeps]
    if not kept:
        raise InputError(f"no text up to {examples[-1].place} has a token of the model's vocabulary; check the columns")
    return kept


def find_tokens_between(tokenizer: Tokenizer) -> list[int]:
    """Extra tokens between two texts beside one separator: RoBERTa has two separators."""
    ids = tokenizer.backend.encode("", "").ids
    num_separators = ids.count(tokenizer.sep_token_id)
    return [tokenizer.sep_token_id] * max(0, num_separators - 2)
