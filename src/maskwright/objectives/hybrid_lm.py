"""Masked and causal language modelling in one run, with one set of weights (as in GPT-BERT, Charpentier & Samuel 2024).

B rows, S row length.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from maskwright.batch import PackedBatch
from maskwright.errors import InputError
from maskwright.masking.tokens import CorruptedBatch
from maskwright.objectives.causal_lm import check_can_be_causal
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.objectives.next_tokens import ask_next_tokens, label_next_tokens, shift_left
from maskwright.randomness import Stream, compute_key, random_uint32, threshold


class HybridLanguageModel(MaskedLanguageModel):
    """A share of the samples is continued from left to right, the others have masked tokens filled.

    Which sample is which is a function of (seed, epoch, sample). With `shifts_masks` a masked token is answered one
    place before it, as the next token of a causal sample is, so that one way of predicting serves both.
    """

    mode = "hybrid"
    accuracy_name = "accuracy"

    def __init__(
        self,
        encoder: nn.Module,
        vocab_size: int | None = None,
        *arguments: Any,
        causal_share: float | Callable[[float], float] = 0.5,
        shifts_masks: bool = True,
        evaluates_causally: bool = False,
        **settings: Any,
    ) -> None:
        """`causal_share` is a number, or gives one for a run's progress in [0, 1]."""
        check_can_be_causal(encoder)
        if isinstance(causal_share, int | float) and not 0 <= causal_share <= 1:
            raise InputError(f"causal_share is {causal_share}; it must lie in [0, 1], 0.5 is half of the samples")
        super().__init__(encoder, vocab_size, *arguments, **settings)
        self.causal_share = causal_share
        self.shifts_masks = shifts_masks
        self.evaluates_causally = evaluates_causally

    @property
    def predicts_next(self) -> bool:  # type: ignore[override]
        return self.shifts_masks

    def corrupt(
        self, batch: PackedBatch, seed: int, epoch: int, ratio: float | None = None, progress: float = 0.0
    ) -> CorruptedBatch:
        ratio = self.mask_ratio if ratio is None else ratio
        masked = self._shift(self.masker.corrupt(batch, ratio, seed, epoch), batch)
        if self.causal_share == 0:
            return masked
        # A share that follows progress may be 0 for a while: batches stay of one kind, as compiled kernels want them.
        share = self.causal_share(progress) if callable(self.causal_share) else self.causal_share
        draws = random_uint32(compute_key(seed, epoch, Stream.OBJECTIVE), batch.sample_ids)
        is_causal = draws < threshold(share)
        input_ids = torch.where(is_causal, batch.input_ids, masked.batch.input_ids)
        labels = torch.where(is_causal, label_next_tokens(batch), masked.labels)
        num_slots = _count_slots(labels.shape, share, masked.num_slots)
        return CorruptedBatch(batch.with_input_ids(input_ids), labels, num_slots, is_causal)

    def corrupt_for_evaluation(self, batch: PackedBatch, seed: int, ratio: float) -> CorruptedBatch:
        """Masks alone, so that the figures compare with those of other objectives; or next tokens alone."""
        if self.evaluates_causally:
            return ask_next_tokens(batch)
        return self._shift(super().corrupt_for_evaluation(batch, seed, ratio), batch)

    def _shift(self, masked: CorruptedBatch, batch: PackedBatch) -> CorruptedBatch:
        return replace(masked, labels=shift_left(masked.labels, batch)) if self.shifts_masks else masked


def _count_slots(shape: torch.Size, causal_share: float, num_masked_slots: int) -> int:
    """Enough for next tokens of a share of the samples and masks of the others, up to six standard deviations.

    The samples, a row long at most, are drawn one by one: a causal one needs a slot for every token.
    """
    num_tokens, length = shape.numel(), shape[1]
    masked_share = num_masked_slots / num_tokens
    expected = num_tokens * (causal_share + (1 - causal_share) * masked_share)
    deviation = (1 - masked_share) * math.sqrt(num_tokens * length * causal_share * (1 - causal_share))
    return min(num_tokens, math.ceil(expected + 6 * deviation))
