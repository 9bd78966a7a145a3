"""Batches that grow over the first part of a run: small steps early, when gradients agree, large ones later."""

from __future__ import annotations

from maskwright.sections.training import TrainingConfig


def count_batches_per_step(config: TrainingConfig, progress: float) -> int:
    """How many of the loader's batches make a step; the loader's have `batch_tokens_start` tokens where that is set."""
    if config.batch_tokens_start is None:
        return 1
    final = config.batch_tokens // config.batch_tokens_start
    return min(final, 1 + int(progress / config.batch_ramp_share * final))
