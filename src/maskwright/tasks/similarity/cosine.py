"""Vectors whose cosine is the label of two texts. B rows, N documents of a row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from maskwright.batch import PackedBatch
from maskwright.models.files.model_folder import OWN_KEY
from maskwright.tasks.pooling import Pooling
from maskwright.tasks.sequence.regression import Regression
from maskwright.tasks.similarity.embedding_head import SETTINGS_PART
from maskwright.tasks.similarity.examples import COSINE
from maskwright.tasks.similarity.pair_vectors import compute_cosines, group_vectors, refuse_single_texts

_PAIR = 2


class CosineSimilarity(Regression):
    """The squared difference between the cosine of two texts and their label, scaled to what a cosine can be."""

    def __init__(self, pooling: Pooling, scale: tuple[float, float], max_length: int | None) -> None:
        super().__init__()
        self.pooling: Pooling = pooling
        self.scale = scale
        self.max_length = max_length

    def encode_targets(self, examples: Sequence[Any]) -> Tensor:
        low, high = self.scale
        return torch.tensor([((example.label or 0.0) - low) / (high - low) for example in examples])

    def read_labels(self, labels: Tensor) -> Tensor:
        raise refuse_single_texts()

    def arrange(self, logits: Tensor, batch: PackedBatch, targets: Tensor) -> Tensor:
        """(B, N, 1) the cosine of each example, at each of its documents."""
        return compute_cosines(group_vectors(logits, _PAIR))

    def describe(self) -> dict[str, Any]:
        settings = {"loss": COSINE, "pooling": self.pooling, "scale": list(self.scale), "max_length": self.max_length}
        return {OWN_KEY: {SETTINGS_PART: settings}}

    def describe_labels(self, targets: Tensor) -> str:
        low, high = self.scale
        scaled = "taken as cosines" if self.scale == (0.0, 1.0) else f"{low:g} to {high:g} scaled to cosines of 0 to 1"
        return f"{scaled}, mean {targets.mean():.3g}"


def find_scale(labels: Sequence[float]) -> tuple[float, float]:
    """The labels that stand for the cosines 0 and 1; what may be a cosine is taken as one."""
    low, high = min(labels), max(labels)
    if low >= -1.0 and high <= 1.0:
        return 0.0, 1.0
    return float(math.floor(low)), float(math.ceil(high))
