"""From the settings of a task to the configuration of a run, for one seed or several in one folder."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from maskwright.config import Config, build_config
from maskwright.errors import InputError
from maskwright.models.files.model_folder import SUMMARY_FILE
from maskwright.ownership import LOCK_FILE
from maskwright.runs.finetune.report import list_scores
from maskwright.runs.folder import RunFolder
from maskwright.storage import write_text
from maskwright.suggestions import OUT, name_option
from maskwright.tasks.config import TaskConfig

_SECTIONS = ("optimizer", "schedule")
_TRAINING_KEYS = (
    "activation_checkpointing",
    "average_decay",
    "checkpoint_every_steps",
    "compile",
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
    "optimizer.learning_rate": "learning_rate",
    "training.epochs": "epochs",
    "training.batch_tokens": "batch_size",
    "training.early_stopping_patience": "patience",
    "data.max_length": "max_length",
    "run.seed": "seeds",
    "run.name": "out",
    "run.out": "out",
}


def build_run_config(config: TaskConfig, folder: Path, seed: int, settings: Sequence[str]) -> Config:
    """`settings` are words such as training.device=cpu."""
    for setting in settings:
        check_setting(setting)
    values = {
        "run": {"name": folder.name, "out": str(folder.parent), "seed": seed},
        "model": {"from": config.model},
        "data": {"train": config.train, "validation": config.validation},
        "optimizer": {} if config.learning_rate is None else {"learning_rate": config.learning_rate},
        "schedule": {"type": "linear"},
        "training": {"epochs": config.epochs},
    }
    return build_config(values, settings)


def check_setting(setting: str) -> None:
    """Refuse a word that is no setting of fine-tuning."""
    key = setting.partition("=")[0]
    section, _, name = key.partition(".")
    if key in _OPTIONS:
        raise InputError(f"'{setting}' is an option of this command; give {name_option(_OPTIONS[key])} instead")
    if section in _SECTIONS or (section == "training" and name in _TRAINING_KEYS) or "=" not in setting:
        return
    raise InputError(
        f"'{setting}' has no effect on fine-tuning; settings are optimizer.KEY, schedule.KEY, and training. with one of"
        f" {', '.join(_TRAINING_KEYS)}"
    )


_SEED_FOLDER = "seed-{}"


def list_seed_folders(out: Path, num_seeds: int) -> list[Path]:
    """One seed's run is the folder itself."""
    return [out] if num_seeds == 1 else [out / _SEED_FOLDER.format(seed) for seed in range(num_seeds)]


def check_seeds_folder(out: Path) -> None:
    """Refuse a folder that holds something else than runs of seeds."""
    if not out.is_dir():
        return
    first = _SEED_FOLDER.format(0)
    others = [path.name for path in out.iterdir() if path.name != LOCK_FILE]
    if others and not RunFolder(out / first).is_run:
        what = "is a single run" if RunFolder(out).is_run else "exists and holds no runs of seeds"
        raise InputError(f"{out} {what}; choose another {OUT}")


def summarise(figures: Sequence[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Mean and standard deviation of every score over the seeds; None where a seed has no value."""
    summary: dict[str, dict[str, float | None]] = {}
    for name in list_scores(figures[0]):
        values = [one[name] for one in figures if one.get(name) is not None]
        is_known = len(values) == len(figures)
        summary[name] = {
            "mean": statistics.fmean(values) if is_known else None,
            "deviation": statistics.stdev(values) if is_known and len(values) > 1 else None,
        }
    return summary


def find_best(figures: Sequence[dict[str, Any]]) -> int:
    """The seed with the highest metric; the first of equal ones."""
    found = [one.get(figures[0]["metric"]) for one in figures]
    values = [-math.inf if one is None else float(one) for one in found]
    return values.index(max(values))


def write_summary(out: Path, figures: Sequence[dict[str, Any]]) -> None:
    seeds, best = [list_scores(one) for one in figures], find_best(figures)
    content = {
        "metric": figures[0]["metric"],
        "best": _SEED_FOLDER.format(best),
        "scores": summarise(figures),
        "seeds": seeds,
    }
    write_text(out / SUMMARY_FILE, json.dumps(content, indent=2) + "\n")
