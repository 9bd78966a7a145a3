"""Masking strategies: whole words, spans (Joshi et al. 2020, SpanBERT), and any of them all by name.

B rows, S row length. For span masking each document is divided into spans of random lengths, one after another, and
spans are chosen as words are in whole-word masking. So spans never overlap and never leave their document.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from maskwright.batch import PackedBatch, find_changes
from maskwright.errors import InputError
from maskwright.masking.tokens import (
    MAX_WORD_TOKENS,
    Masker,
    Selection,
    Strategy,
    TokenMasker,
    Units,
    WordLayout,
    find_last,
    lay_out_words,
    low_bits,
)
from maskwright.masking.weighted import (
    DEFAULT_EXPONENT,
    DEFAULT_LOSS_DECAY,
    DEFAULT_UPDATE_EVERY_STEPS,
    AdaptiveMasker,
    FrequencyMasker,
)
from maskwright.randomness import threshold
from maskwright.suggestions import suggest

DEFAULT_SPAN_P = 0.2
DEFAULT_SPAN_MAX_WORDS = 10


class SpanMasker(Masker):
    """Chooses spans; all tokens of a span are replaced in the same way, as in SpanBERT."""

    strategy = "span"

    def __init__(
        self,
        vocab_size: int,
        mask_token_id: int,
        special_token_ids: Sequence[int],
        random_token_ratio: float = 0.1,
        unchanged_ratio: float = 0.1,
        selection: Selection = "exact",
        *,
        span_p: float = DEFAULT_SPAN_P,
        span_max_words: int = DEFAULT_SPAN_MAX_WORDS,
    ) -> None:
        super().__init__(vocab_size, mask_token_id, special_token_ids, random_token_ratio, unchanged_ratio, selection)
        if not 0.0 < span_p <= 1.0:
            raise InputError(f"span_p is {span_p}; it must lie in (0, 1], SpanBERT used {DEFAULT_SPAN_P}")
        if span_max_words < 1:
            raise InputError(
                f"span_max_words is {span_max_words}; it must be at least 1, SpanBERT used {DEFAULT_SPAN_MAX_WORDS}"
            )
        self.span_p, self.span_max_words = span_p, span_max_words
        self._length_bounds = torch.tensor(compute_length_bounds(span_p, span_max_words), dtype=torch.long)

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "span_p": self.span_p, "span_max_words": self.span_max_words}

    @property
    def max_unit_tokens(self) -> int:
        """With exact selection the last span is cut at a word boundary, so the number is exact up to a word."""
        return MAX_WORD_TOKENS * (self.span_max_words if self.selection == "bernoulli" else 1)

    def _group(self, batch: PackedBatch, is_maskable: Tensor, hashes: Tensor) -> Units:
        word = lay_out_words(batch, is_maskable)
        lengths = 1 + torch.bucketize(low_bits(hashes), self._length_bounds, right=True)
        first_places = find_last(_find_span_starts(batch, word, is_maskable, lengths))
        return Units(word, first_places, first_places)

    def _move_tables(self, device: torch.device) -> None:
        super()._move_tables(device)
        if self._length_bounds.device != device:
            self._length_bounds = self._length_bounds.to(device)


def compute_length_bounds(span_p: float, max_words: int) -> list[int]:
    """Bounds of `random_uint32` between the lengths 1, 2, ... `max_words`.

    P(l) is proportional to p * (1 - p) ** (l - 1), as in SpanBERT's code: 3.8 words in the mean for 0.2 and 10.
    """
    total = 1.0 - (1.0 - span_p) ** max_words
    return [threshold((1.0 - (1.0 - span_p) ** words) / total) for words in range(1, max_words)]


def _find_span_starts(batch: PackedBatch, word: WordLayout, is_maskable: Tensor, lengths: Tensor) -> Tensor:
    """True at the first token of each span.

    The length drawn at a document's n-th token is that of its n-th span. Words are numbered within their document, and
    the first word of a span identifies it. Such a number, counted from the document's start, is an index into the row;
    the excess of the last span reaches into the next document, whose own values win.
    """
    document_starts = find_last(find_changes(batch.document_ids))
    is_word_start = is_maskable & (word.offsets == 0)
    counts = torch.stack([lengths, is_word_start.long()])
    counts_before = counts.cumsum(dim=2) - counts
    counts_before -= counts_before.gather(2, document_starts.expand_as(counts))
    span_slots, word_slots = counts_before + document_starts

    num_rows, length = lengths.shape
    owners = torch.full((num_rows, length + 1), -1, device=lengths.device)
    owners.scatter_reduce_(1, span_slots.clamp(max=length), document_starts, "amax")
    return word.is_cut | (is_word_start & (owners.gather(1, word_slots) == document_starts))


class WordMasker(Masker):
    """Chooses words; each of their tokens is replaced on its own, as in BERT's whole-word masking."""

    strategy = "whole_word"
    max_unit_tokens = MAX_WORD_TOKENS

    def _group(self, batch: PackedBatch, is_maskable: Tensor, hashes: Tensor) -> Units:
        word = lay_out_words(batch, is_maskable)
        return Units(word, draw_places=word.first_places)


def build_masker(
    vocab_size: int,
    mask_token_id: int,
    special_token_ids: Sequence[int],
    *,
    strategy: Strategy = "token",
    random_token_ratio: float = 0.1,
    unchanged_ratio: float = 0.1,
    selection: Selection = "exact",
    span_p: float = DEFAULT_SPAN_P,
    span_max_words: int = DEFAULT_SPAN_MAX_WORDS,
    exponent: float = DEFAULT_EXPONENT,
    update_every_steps: int = DEFAULT_UPDATE_EVERY_STEPS,
    loss_decay: float = DEFAULT_LOSS_DECAY,
) -> Masker:
    """The masker of a strategy; `masker.settings()` are the arguments that build another like it."""
    vocabulary = (vocab_size, mask_token_id, special_token_ids)
    split = (random_token_ratio, unchanged_ratio, selection)
    match strategy:
        case "token":
            return TokenMasker(*vocabulary, *split)
        case "whole_word":
            return WordMasker(*vocabulary, *split)
        case "span":
            return SpanMasker(*vocabulary, *split, span_p=span_p, span_max_words=span_max_words)
        case "frequency":
            return FrequencyMasker(*vocabulary, *split, exponent=exponent)
        case "adaptive":
            return AdaptiveMasker(
                *vocabulary,
                *split,
                exponent=exponent,
                update_every_steps=update_every_steps,
                loss_decay=loss_decay,
            )
        case unknown:
            raise InputError(f"no masking strategy '{unknown}'{suggest(unknown, get_args(Strategy))}")


RatioSchedule = Literal["constant", "linear", "cosine", "step"]


def compute_mask_ratio(schedule: RatioSchedule, start: float, end: float, progress: float) -> float:
    """The mask ratio at `progress`; `step` changes once, half-way."""
    progress = min(max(progress, 0.0), 1.0)
    match schedule:
        case "constant":
            return start
        case "linear":
            return start + (end - start) * progress
        case "cosine":
            return end + (start - end) * (1 + math.cos(math.pi * progress)) / 2
        case "step":
            return start if progress < 0.5 else end
