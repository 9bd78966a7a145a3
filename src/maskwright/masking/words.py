"""Whole-word masking: a word is masked with all its tokens, or not at all."""

from __future__ import annotations

from torch import Tensor

from maskwright.batch import PackedBatch
from maskwright.masking.tokens import Masker
from maskwright.masking.units import MAX_WORD_TOKENS, Units, lay_out_words


class WordMasker(Masker):
    """Chooses words; what becomes of their tokens is decided token by token, as in BERT's whole-word masking."""

    strategy = "whole_word"
    max_unit_tokens = MAX_WORD_TOKENS

    def _group(self, batch: PackedBatch, is_maskable: Tensor, hashes: Tensor) -> Units:
        word = lay_out_words(batch, is_maskable)
        return Units(word, draw_places=word.first_places)
