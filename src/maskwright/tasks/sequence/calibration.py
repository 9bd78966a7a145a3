"""Whether probabilities mean what they say: of answers given with 80%, 80% should be right. C classes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

NUM_BINS = 15
"""Of equal width between 0 and 1, as in Guo et al. (2017), "On Calibration of Modern Neural Networks"."""


@dataclass(frozen=True)
class Calibration:
    """Answers by their confidence, which is the probability of the class that was chosen."""

    counts: Tensor
    """(bins,)"""
    confidence: Tensor
    """(bins,) the mean of each bin; 0 where it is empty."""
    accuracy: Tensor
    """(bins,) the share of right answers."""

    @property
    def error(self) -> float:
        """The mean distance of confidence and accuracy, each bin weighted by its answers."""
        return float((self.counts * (self.confidence - self.accuracy).abs()).sum() / self.counts.sum())


def calibrate(logits: Tensor, targets: Tensor) -> Calibration:
    """Logits (examples, C) against the right classes (examples,)."""
    confidence, chosen = logits.double().softmax(-1).max(-1)
    bins = (confidence * NUM_BINS).long().clamp(max=NUM_BINS - 1)
    empty = torch.zeros(NUM_BINS, dtype=torch.float64)
    counts = empty.index_add(0, bins, torch.ones_like(confidence))
    sums = [empty.index_add(0, bins, values) for values in (confidence, (chosen == targets).double())]
    means = [one / counts.clamp(min=1) for one in sums]
    return Calibration(counts, means[0], means[1])
