"""Mask-ratio schedules: the ratio as a function of a run's progress in [0, 1]."""

from __future__ import annotations

import math
from typing import Literal

RatioSchedule = Literal["constant", "linear", "cosine", "step"]


def compute_mask_ratio(schedule: RatioSchedule, start: float, end: float, progress: float) -> float:
    """The mask ratio at `progress`; `step` changes once, half-way."""
    progress = min(max(progress, 0.0), 1.0)
    match schedule:
        case "constant":
            return start
        case "linear":
            return start + (end - start) * progress
        case "cosine":
            return end + (start - end) * (1 + math.cos(math.pi * progress)) / 2
        case "step":
            return start if progress < 0.5 else end
