"""The masking strategies by their names in a configuration, and the mask ratio as a function of a run's progress."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

from torch import Tensor

from maskwright.batch import PackedBatch
from maskwright.errors import InputError
from maskwright.masking.spans import DEFAULT_SPAN_MAX_WORDS, DEFAULT_SPAN_P, SpanMasker
from maskwright.masking.tokens import Masker, Selection, Strategy, TokenMasker
from maskwright.masking.units import MAX_WORD_TOKENS, Units, lay_out_words
from maskwright.suggestions import suggest


class WordMasker(Masker):
    """Chooses words; what becomes of their tokens is decided token by token, as in BERT's whole-word masking."""

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
