"""The area under the ROC curve from counts that add up over batches and processes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

NUM_BINS = 128
_LARGEST_LOGIT = 8.0
"""Bins are equally wide in logits; scores beyond, a probability of 0.9997, share the outermost."""


def count_scores(logits: Tensor, is_positive: Tensor, is_counted: Tensor) -> Tensor:
    """(2 * NUM_BINS,) how many scores fall into each bin: first those of positives, then those of negatives."""
    scaled = (logits.float() / _LARGEST_LOGIT + 1.0) * (NUM_BINS / 2)
    bins = scaled.clamp(0, NUM_BINS - 1).long() + NUM_BINS * ~is_positive
    counts = torch.zeros(2 * NUM_BINS, dtype=torch.long, device=logits.device)
    return counts.scatter_add_(0, bins.flatten(), is_counted.long().flatten())


def compute_auc(positives: Sequence[float], negatives: Sequence[float]) -> float:
    """How often a positive scores above a negative; a tie, here one bin, counts half. NaN without one of either."""
    num_pairs = sum(positives) * sum(negatives)
    if not num_pairs:
        return float("nan")
    below = accumulate(negatives, initial=0.0)
    won = sum(
        positive * (lower + negative / 2)
        for positive, negative, lower in zip(positives, negatives, below, strict=False)
    )
    return won / num_pairs
