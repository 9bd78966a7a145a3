"""Loss and accuracy of a model under fixed masks, so that every evaluation asks the same questions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from maskwright.batch import PackedBatch
from maskwright.errors import InputError
from maskwright.masking.tokens import TokenMasker
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.training.modes import evaluation_mode

EVALUATION_SEED = 15
EVALUATION_RATIO = 0.15


@dataclass(frozen=True)
class Evaluation:
    """Means over the masked tokens; NaN where there was none."""

    loss: float
    accuracy: float
    num_masked: int

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700.0))


@torch.no_grad()
def evaluate(
    model: MaskedLanguageModel,
    batches: Iterable[PackedBatch],
    *,
    mask_ratio: float = EVALUATION_RATIO,
    seed: int = EVALUATION_SEED,
) -> Evaluation:
    """Evaluate without dropout; masks depend on the samples alone, not on the run or its progress."""
    device = next(model.parameters()).device
    totals: Tensor | None = None
    with evaluation_mode(model):
        for batch in batches:
            sums = model.loss_sums(model.corrupt(batch.to(device), seed, 0, mask_ratio))
            parts = torch.stack([sums.loss_sum.double(), sums.num_correct.double(), sums.num_labelled.double()])
            totals = parts if totals is None else totals + parts
    if totals is None:
        raise InputError("there is no batch to evaluate; give a list or a loader that holds some")
    loss, accuracy, _ = (totals / totals[2]).tolist()
    return Evaluation(loss, accuracy, int(totals[2]))


def evaluate_unigram(
    masker: TokenMasker,
    batches: Iterable[PackedBatch],
    token_counts: Tensor,
    *,
    mask_ratio: float = EVALUATION_RATIO,
    seed: int = EVALUATION_SEED,
) -> float:
    """The loss of guessing by the training text's token frequencies (one added to each) at the same masked tokens."""
    smoothed = token_counts.double() + 1.0
    log_probabilities = torch.log(smoothed / smoothed.sum())
    loss_sum, num_masked = 0.0, 0
    for batch in batches:
        corrupted = masker.corrupt(batch, mask_ratio, seed, 0)
        labels = corrupted.labels[corrupted.selected]
        loss_sum -= float(log_probabilities[labels].sum())
        num_masked += len(labels)
    if not num_masked:
        raise InputError("the held-out text is too small: none of its tokens is masked; hold out more")
    return loss_sum / num_masked
