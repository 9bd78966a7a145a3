"""Loss and accuracy of a model under fixed masks, so that every evaluation asks the same questions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from maskwright.batch import PackedBatch
from maskwright.masking.tokens import TokenMasker
from maskwright.objectives.masked_lm import MaskedLanguageModel

EVALUATION_SEED = 15
EVALUATION_RATIO = 0.15


@dataclass(frozen=True)
class Evaluation:
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
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    totals = torch.zeros(3, dtype=torch.float64, device=device)
    for batch in batches:
        sums = model.loss_sums(model.corrupt(batch.to(device), seed, 0, mask_ratio))
        totals += torch.stack([sums.loss_sum.double(), sums.num_correct.double(), sums.num_labelled.double()])
    model.train(was_training)
    loss_sum, num_correct, num_masked = totals.tolist()
    return Evaluation(loss_sum / max(num_masked, 1.0), num_correct / max(num_masked, 1.0), int(num_masked))


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
    return loss_sum / max(num_masked, 1)
