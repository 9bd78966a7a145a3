"""What tasks share that give one of several classes to each thing they are asked about. C classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from maskwright.batch import IGNORED_LABEL
from maskwright.tasks.labels import read_classes
from maskwright.tasks.task import Task


class OneClassTask(Task):
    """Cross-entropy, weighted by class where weights are given; the mean is over what is asked, whatever its weight."""

    class_weights: Tensor | None

    def __init__(
        self, classes: Sequence[str], class_weights: Sequence[float] | None = None, label_smoothing: float = 0.0
    ) -> None:
        super().__init__()
        self.classes = tuple(classes)
        self.label_smoothing = label_smoothing
        weights = None if class_weights is None else torch.tensor(class_weights)
        self.register_buffer("class_weights", weights, persistent=False)

    @classmethod
    def from_description(cls, config: Mapping[str, Any]) -> Self:
        return cls(read_classes(config))

    @property
    def num_outputs(self) -> int:
        return len(self.classes)

    def sum_cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Of logits (..., C) against the numbers of classes (...)."""
        return F.cross_entropy(
            logits.float().flatten(0, -2),
            targets.flatten(),
            weight=self.class_weights,
            reduction="sum",
            ignore_index=IGNORED_LABEL,
            label_smoothing=self.label_smoothing,
        )
