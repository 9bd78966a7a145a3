"""When a run ends, and how far along it is."""

from __future__ import annotations

import math
from dataclasses import dataclass

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
