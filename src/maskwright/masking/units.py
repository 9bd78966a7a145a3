"""What is chosen as one, single tokens, words or spans of words, and the random numbers it is chosen by.

B rows, S row length, N streams of random numbers, drawn at once: on a GPU it is the number of operations that costs,
not their size. The numbers are those of `random_uint32(key, sample_ids, positions)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from maskwright.batch import PackedBatch, find_changes
from maskwright.errors import InputError
from maskwright.randomness import UINT32_RANGE, hash_counters

MAX_WORD_TOKENS = 8
"""Longer words are cut into pieces of this many tokens, as a text without spaces would else be one word."""


@dataclass(frozen=True)
class WordLayout:
    """Where each token stands in its word; (B, S) each."""

    first_places: Tensor
    """Where in the row its word begins."""
    offsets: Tensor
    """How many tokens of its word come before it."""
    sizes: Tensor
    """How many tokens its word has."""
    is_cut: Tensor
    """True where a word begins whatever the tokenizer says: where a document does, and around special tokens."""


@dataclass(frozen=True)
class Units:
    """Places in the row, (B, S), whose random numbers decide on each token; None: the token's own."""

    word: WordLayout | None = None
    """What is never cut when a document's quota ends; None: single tokens."""
    draw_places: Tensor | None = None
    """For being chosen: the same for all tokens that are chosen together."""
    fate_places: Tensor | None = None
    """For becoming [MASK], a random token or nothing."""


def lay_out_words(batch: PackedBatch, is_maskable: Tensor) -> WordLayout:
    """Words of maskable tokens; documents, special tokens and padding end a word, and long ones are cut."""
    if batch.word_starts is None:
        raise InputError(
            "the batch does not say where words begin; build its loader with with_words=True, give a padded dictionary"
            " 'word_starts' or 'word_ids', or mask by tokens"
        )
    is_cut = find_changes(torch.where(is_maskable, batch.document_ids, -1)) | ~is_maskable
    places = list_places(is_cut)
    offsets = (places - find_last(batch.word_starts | is_cut)) % MAX_WORD_TOKENS
    first_places = places - offsets
    sizes = torch.zeros_like(places).scatter_add_(1, first_places, torch.ones_like(places)).gather(1, first_places)
    return WordLayout(first_places, offsets, sizes, is_cut)


def list_places(like: Tensor) -> Tensor:
    """(B, S) the place of each token in its row."""
    return torch.arange(like.shape[1], device=like.device).expand(like.shape)


def find_last(flags: Tensor) -> Tensor:
    """For each token the last place up to it that has the flag; the first of a row counts as having it."""
    return torch.where(flags, list_places(flags), 0).cummax(dim=1).values


def hash_samples(sample_ids: Tensor, keys: Sequence[int]) -> Tensor:
    """(N, B, S) 64 random bits for each key and sample."""
    return hash_counters(0, torch.stack([sample_ids + _as_int64(key) for key in keys]))


def hash_positions(sample_hashes: Tensor, positions: Tensor) -> Tensor:
    """(N, B, S) 64 random bits for each key, sample and position."""
    return hash_counters(0, sample_hashes + positions)


def high_bits(hashes: Tensor) -> Tensor:
    """Uniform integers in [0, 2**32)."""
    return (hashes >> 32) & (UINT32_RANGE - 1)


def low_bits(hashes: Tensor) -> Tensor:
    """Other such integers, independent of the high ones."""
    return hashes & (UINT32_RANGE - 1)


def _as_int64(key: int) -> int:
    return key - (1 << 64) if key >= 1 << 63 else key
