"""From the settings of a task to the configuration of a run, under which trainer and run folder work as always."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from maskwright.config import Config, build_config
from maskwright.errors import InputError
from maskwright.tasks.config import TaskConfig

_SECTIONS = ("optimizer", "schedule")
_TRAINING_KEYS = (
    "activation_checkpointing",
    "average_decay",
    "checkpoint_every_steps",
    "dead_process_seconds",
    "device",
    "evaluate_every_steps",
    "evaluate_max_batches",
    "keep_checkpoints",
    "keep_every_steps",
    "log_every_steps",
    "log_to",
    "max_bad_steps",
    "max_seconds",
    "max_steps",
    "micro_batch_tokens",
    "parallel",
    "precision",
    "tensorboard",
)
"""Those that mean the same here; the others are options of the command, or belong to pre-training."""
_OPTIONS = {
    "optimizer.learning_rate": "--learning-rate",
    "training.epochs": "--epochs",
    "training.batch_tokens": "--batch-size",
    "training.early_stopping_patience": "--patience",
    "data.max_length": "--max-length",
    "run.seed": "--seeds",
    "run.name": "--out",
    "run.out": "--out",
}


def build_run_config(config: TaskConfig, folder: Path, seed: int, settings: Sequence[str]) -> Config:
    """`settings` are words such as training.device=cpu."""
    for setting in settings:
        _check_setting(setting)
    values = {
        "run": {"name": folder.name, "out": str(folder.parent), "seed": seed},
        "model": {"from": config.model},
        "data": {"train": config.train, "validation": config.validation},
        "optimizer": {} if config.learning_rate is None else {"learning_rate": config.learning_rate},
        "schedule": {"type": "linear"},
        "training": {"epochs": config.epochs, "compile": False},  # rows differ in shape from batch to batch
    }
    return build_config(values, settings)


def _check_setting(setting: str) -> None:
    key = setting.partition("=")[0]
    section, _, name = key.partition(".")
    if key in _OPTIONS:
        raise InputError(f"'{setting}' is an option of this command; give {_OPTIONS[key]} instead")
    if section in _SECTIONS or (section == "training" and name in _TRAINING_KEYS) or "=" not in setting:
        return
    raise InputError(
        f"'{setting}' has no effect on fine-tuning; settings are optimizer.KEY, schedule.KEY, and training. with one of"
        f" {', '.join(_TRAINING_KEYS)}"
    )
