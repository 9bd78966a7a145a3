"""The masking strategies by their names in a configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from maskwright.errors import InputError
from maskwright.masking.spans import DEFAULT_SPAN_MAX_WORDS, DEFAULT_SPAN_P, SpanMasker
from maskwright.masking.tokens import Masker, Selection, Strategy, TokenMasker
from maskwright.masking.words import WordMasker
from maskwright.suggestions import suggest


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
