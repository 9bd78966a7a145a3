"""When a run ends, and how far along it is."""

from __future__ import annotations

import math
from dataclasses import dataclass

from maskwright.errors import InputError
from maskwright.sections.training import TrainingConfig
from maskwright.training.state import TrainingState


@dataclass(frozen=True)
class Budget:
    """Limits of a run; `expected_batches` is what its epochs will take, which packing makes inexact by a few."""

    expected_batches: float = math.inf
    max_steps: int | None = None
    max_tokens: int | None = None
    max_seconds: float | None = None

    def progress(self, state: TrainingState) -> float:
        """The share of the run that is done, by the limit it is nearest to."""
        return min(max(state.num_batches / self.expected_batches, *self._shares(state)), 1.0)

    def is_spent(self, state: TrainingState) -> bool:
        """Whether a hard limit is reached; epochs are the loop's business."""
        return max(self._shares(state)) >= 1.0

    def _shares(self, state: TrainingState) -> tuple[float, float, float]:
        return (
            state.step / (self.max_steps or math.inf),
            state.num_places / (self.max_tokens or math.inf),
            state.elapsed_s / (self.max_seconds or math.inf),
        )


def build_budget(batches_per_epoch: int | None, num_epochs: int, config: TrainingConfig) -> Budget:
    """`batches_per_epoch` is None for data without a length."""
    if batches_per_epoch == 0:
        raise InputError("the training data holds no batch")
    limits = (config.max_steps, config.max_tokens, config.max_seconds)
    if batches_per_epoch is None and not any(limits):
        raise InputError("the training data has no length; set training.max_steps or training.max_seconds")
    return Budget(math.inf if batches_per_epoch is None else batches_per_epoch * num_epochs, *limits)
