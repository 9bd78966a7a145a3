"""Learning-rate schedules: the learning rate as a function of the step and of the run's progress in [0, 1].

Progress rather than a step count lets one schedule serve runs that end after steps, epochs or seconds.
"""

from __future__ import annotations

import math

from maskwright.config import ScheduleConfig


def compute_learning_rate(config: ScheduleConfig, peak: float, step: int, progress: float) -> float:
    """The rate of the step numbered from 0; `progress` is the share of the run that is done."""
    warmup = _warmup_done(config, step, progress)
    if warmup < 1.0:
        start = min(config.warmup_start_lr, peak)
        return start + (peak - start) * warmup
    floor = peak * config.alpha
    return floor + (peak - floor) * _remaining(config, _after_warmup(config, progress))


def _warmup_done(config: ScheduleConfig, step: int, progress: float) -> float:
    if config.warmup_steps is not None:
        return step / config.warmup_steps if config.warmup_steps else 1.0
    return progress / config.warmup_share if config.warmup_share else 1.0


def _after_warmup(config: ScheduleConfig, progress: float) -> float:
    share = config.warmup_share if config.warmup_steps is None else 0.0
    return min(max((progress - share) / (1.0 - share), 0.0), 1.0)


def _remaining(config: ScheduleConfig, done: float) -> float:
    """The height between floor and peak, from 1 to 0."""
    match config.type:
        case "constant":
            return 1.0
        case "cosine_decay":
            return (1.0 + math.cos(math.pi * done)) / 2
        case "polynomial_decay":
            return float((1.0 - done) ** config.power)
        case "wsd":
            return min(1.0, (1.0 - done) / config.decay_share)
