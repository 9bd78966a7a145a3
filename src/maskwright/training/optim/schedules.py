"""Learning-rate schedules: the learning rate as a function of the step and of the run's progress in [0, 1].

Because progress is not a step count, one schedule serves runs that end after steps, epochs or seconds.
"""

from __future__ import annotations

import math
from typing import Literal

from maskwright.sections.training import ScheduleConfig


def compute_learning_rate(config: ScheduleConfig, peak: float, step: int, progress: float) -> float:
    """The rate of the step numbered from 0; `progress` is the share of the run that is done.

    With `decay_steps` the schedule ends there, and progress is relative to that step.
    """
    if config.decay_steps is not None:
        progress = min(1.0, step / config.decay_steps)
    warmup = _warmup_done(config, step, progress)
    if warmup < 1.0:
        start = min(config.warmup_start_lr, peak)
        return start + (peak - start) * warmup
    floor = peak * config.alpha
    return floor + (peak - floor) * _remaining(config, _warmup_share(config, step, progress), progress)


def _warmup_done(config: ScheduleConfig, step: int, progress: float) -> float:
    if config.warmup_steps is not None:
        return step / config.warmup_steps if config.warmup_steps else 1.0
    return progress / config.warmup_share if config.warmup_share else 1.0


def _warmup_share(config: ScheduleConfig, step: int, progress: float) -> float:
    """The share of the run that the finished warm-up took; for `warmup_steps`, estimated from the pace so far."""
    if config.warmup_steps is None:
        return config.warmup_share
    return progress * config.warmup_steps / step if config.warmup_steps else 0.0


def _remaining(config: ScheduleConfig, warmup_share: float, progress: float) -> float:
    """The height between floor and peak, from 1 at the end of the warm-up to 0 at the end."""
    if progress >= 1.0:
        return 1.0 if config.type == "constant" else 0.0
    rest = (1.0 - progress) / (1.0 - warmup_share)
    match config.type:
        case "constant":
            return 1.0
        case "linear":
            return rest
        case "cosine_decay":
            return (1.0 - math.cos(math.pi * rest)) / 2
        case "polynomial_decay":
            return float(rest**config.power)
        case "wsd":
            return min(1.0, (1.0 - progress) / min(config.decay_share, 1.0 - warmup_share))


def scale_learning_rate(rule: Literal["none", "linear", "sqrt"], rate: float, world_size: int) -> float:
    """The rate for a batch that is `world_size` times as large (linear: Goyal et al. 2017; sqrt: Krizhevsky 2014)."""
    match rule:
        case "none":
            return rate
        case "linear":
            return rate * world_size
        case "sqrt":
            return rate * math.sqrt(world_size)
