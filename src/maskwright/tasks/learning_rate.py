"""The learning rate of a fine-tuning for which none was given."""

from __future__ import annotations

import math

import torch
from torch import nn

_BERT_BASE_RATE, _BERT_BASE_WIDTH = 5e-5, 768
_LARGEST_USUAL_SIZE = 0.06
"""Of weights: all-MiniLM-L6-v2 has as much, encoders that Muon trained two to three times as much."""


def choose_learning_rate(width: int, weights_size: float) -> float:
    """BERT-base's usual rate at its width; wider encoders want smaller steps, larger weights want larger ones."""
    rate = _BERT_BASE_RATE * _BERT_BASE_WIDTH / width
    return float(f"{rate * max(1.0, weights_size / _LARGEST_USUAL_SIZE):.1e}")


@torch.no_grad()
def measure_weights(encoder: nn.Module) -> float:
    """The root mean square over its matrices, without embeddings; 0 without any."""
    weights = [module.weight for module in encoder.modules() if isinstance(module, nn.Linear)]
    if not weights:
        return 0.0
    total = sum(float(weight.double().square().sum()) for weight in weights)
    return math.sqrt(total / sum(weight.numel() for weight in weights))
