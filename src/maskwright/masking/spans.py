"""Span masking (Joshi et al. 2020, SpanBERT): runs of whole words, of geometrically distributed lengths.

B rows, S row length. Each document is divided into spans of random lengths, one after another, and spans are chosen
as words are in whole-word masking. So they never overlap and never leave their document.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from maskwright.batch import PackedBatch
from maskwright.errors import InputError
from maskwright.masking.tokens import Masker, Selection
from maskwright.masking.units import (
    MAX_WORD_TOKENS,
    Units,
    WordLayout,
    find_document_starts,
    find_last,
    lay_out_words,
)
from maskwright.randomness import Stream, compute_key, random_uint32, threshold

DEFAULT_SPAN_P = 0.2
DEFAULT_SPAN_MAX_WORDS = 10


class SpanMasker(Masker):
    """Chooses spans; what becomes of their tokens is decided once for a span, as in SpanBERT."""

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
        """With exact selection the last span is cut at a word, so it is words that make the number inexact."""
        return MAX_WORD_TOKENS * (self.span_max_words if self.selection == "bernoulli" else 1)

    def _group(self, batch: PackedBatch, is_maskable: Tensor, seed: int, epoch: int) -> Units:
        word = lay_out_words(batch, is_maskable)
        places = torch.arange(word.offsets.shape[1], device=word.offsets.device).expand_as(word.offsets)
        begins = self._find_span_starts(batch, word, is_maskable, places, compute_key(seed, epoch, Stream.SELECTION))
        first_positions = batch.positions.gather(1, find_last(begins, places))
        return Units(first_positions, first_positions, word)

    def _find_span_starts(
        self, batch: PackedBatch, word: WordLayout, is_maskable: Tensor, places: Tensor, key: int
    ) -> Tensor:
        """Lengths are drawn for the first, second, ... span of a document; their sums say which words begin one."""
        document_starts = find_last(find_document_starts(batch), places)
        is_word_start = is_maskable & (word.offsets == 0)
        span_numbers = places - document_starts
        draws = random_uint32(compute_key(key, 0, Stream.PARTS), batch.sample_ids, span_numbers)
        lengths = 1 + torch.bucketize(draws, self._length_bounds, right=True)
        first_words = _sum_before(lengths, document_starts) + lengths

        # Words and spans of a document are numbered from its first place on, as it has no more of them than places.
        length = places.shape[1]
        slots = document_starts + first_words
        is_inside = (slots < length) & (document_starts.gather(1, slots.clamp(max=length - 1)) == document_starts)
        begins_span = torch.zeros(places.shape[0], length + 1, dtype=torch.bool, device=places.device)
        begins_span.scatter_(1, torch.where(is_inside, slots, length), True)
        word_slots = document_starts + _sum_before(is_word_start.long(), document_starts)
        starts = is_word_start & begins_span.gather(1, word_slots)
        starts |= ~is_maskable
        starts[:, 1:] |= ~is_maskable[:, :-1]
        return starts | (places == document_starts)

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


def _sum_before(values: Tensor, document_starts: Tensor) -> Tensor:
    """The sum over those tokens of the same document that come before each token."""
    before = values.cumsum(dim=1) - values
    return before - before.gather(1, document_starts)
