"""When a run ends, and how far along it is."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """Limits of a run; `expected_steps` is what it will take by its data, which packing makes inexact by a few."""

    expected_steps: float
    max_steps: int | None = None
    max_seconds: float | None = None

    def progress(self, step: int, elapsed_s: float) -> float:
        """The share of the run that is done, by the limit it is nearest to."""
        return min(max(step / self.expected_steps, elapsed_s / (self.max_seconds or math.inf)), 1.0)

    def is_spent(self, step: int, elapsed_s: float) -> bool:
        """Whether a hard limit is reached; epochs are the loop's business."""
        return step >= (self.max_steps or math.inf) or elapsed_s >= (self.max_seconds or math.inf)
