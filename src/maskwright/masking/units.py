"""What is chosen as one: single tokens, words or spans of words. B rows, S row length."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from maskwright.batch import PackedBatch
from maskwright.errors import InputError

MAX_WORD_TOKENS = 8
"""Longer words are cut into pieces of this many tokens, as a text without spaces would else be one word."""


@dataclass(frozen=True)
class WordLayout:
    """Where each token stands in its word; (B, S) each."""

    offsets: Tensor
    """How many tokens of its word come before it."""
    sizes: Tensor
    """How many tokens its word has."""


@dataclass(frozen=True)
class Units:
    """Positions whose random numbers decide on each token; (B, S) each."""

    draw_positions: Tensor
    """For being chosen: the same for all tokens that are chosen together."""
    fate_positions: Tensor
    """For becoming [MASK], a random token or nothing."""
    word: WordLayout | None = None
    """What is never cut when a document's quota ends; None: single tokens."""


def lay_out_words(batch: PackedBatch, is_maskable: Tensor) -> WordLayout:
    """Words of maskable tokens; documents, special tokens and padding end a word, and long ones are cut."""
    if batch.word_starts is None:
        raise InputError(
            "the batch does not say where words begin; build its loader with with_words=True, give a padded dictionary"
            " 'word_starts' or 'word_ids', or mask by tokens"
        )
    is_cut = find_document_starts(batch) | ~is_maskable
    begins = batch.word_starts.bool() | is_cut
    begins[:, 1:] |= ~is_maskable[:, :-1]
    places = torch.arange(begins.shape[1], device=begins.device).expand_as(begins)
    offsets = (places - find_last(begins, places)) % MAX_WORD_TOKENS
    first_places = places - offsets
    sizes = torch.zeros_like(places).scatter_add_(1, first_places, torch.ones_like(places)).gather(1, first_places)
    return WordLayout(offsets, sizes)


def find_document_starts(batch: PackedBatch) -> Tensor:
    """True at the first token of each document, and of each stretch of padding."""
    starts = torch.ones_like(batch.document_ids, dtype=torch.bool)
    starts[:, 1:] = batch.document_ids[:, 1:] != batch.document_ids[:, :-1]
    return starts


def find_last(flags: Tensor, places: Tensor) -> Tensor:
    """For each place the last one up to it that has the flag; the first of a row counts as having it."""
    return torch.where(flags, places, 0).cummax(dim=1).values
