"""Whether a run's checkpoints fit on the disk."""

from __future__ import annotations

import shutil
from pathlib import Path

from maskwright.runs.checkup.findings import Finding
from maskwright.runs.checkup.memory import MemoryNeed
from maskwright.runs.checkup.units import format_bytes
from maskwright.sections.training import TrainingConfig
from maskwright.text.tokenizer import Tokenizer

_TIGHT = 0.9


def estimate_checkpoint_bytes(need: MemoryNeed, tokenizer: Tokenizer) -> int:
    """Weights with their average, optimizer state and tokenizer."""
    return need.weights + need.optimizer + len(tokenizer.backend.to_str(pretty=True).encode())


def count_checkpoints(training: TrainingConfig, num_steps: int) -> int:
    """The most there are at a time, with the one that is being written."""
    milestones = 0 if training.keep_every_steps is None else num_steps // training.keep_every_steps
    bests = training.keep_best + (training.early_stopping_patience is not None)
    written = num_steps // training.checkpoint_every_steps + 1
    return min(training.keep_checkpoints + milestones + bests + 1, written + bests)


def check_disk(folder: Path, checkpoint_bytes: int, num_checkpoints: int, model_bytes: int) -> Finding:
    """The final model comes on top; `folder` need not exist yet."""
    free = shutil.disk_usage(find_existing(folder)).free
    needed = checkpoint_bytes * num_checkpoints + model_bytes
    text = (
        f"checkpoints of {format_bytes(checkpoint_bytes)}, up to {num_checkpoints:,} at a time, and the model:"
        f" {format_bytes(needed)} of {format_bytes(free)} free at {folder}"
    )
    advice = "set run.out to a larger disk, or keep fewer (training.keep_checkpoints, training.keep_every_steps)"
    is_tight = needed > _TIGHT * free
    return Finding.judge("disk", text, advice if is_tight else None, "problem" if needed > free else "warning")


def find_existing(folder: Path) -> Path:
    return next(place for place in (folder, *folder.absolute().parents) if place.exists())
