"""Where an exported model comes from: its run, and the facts of it that a model card tells."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maskwright.config import Config, load_config
from maskwright.export.card import TRAINING_CONFIG_FILE, Origin
from maskwright.export.task_card import TaskOrigin
from maskwright.models.files.model_folder import SEED_NAME, SUMMARY_FILE
from maskwright.runs.finetune.finetune import TASK_FILE
from maskwright.runs.finetune.report import format_score, list_scores
from maskwright.runs.folder import RunFolder
from maskwright.tasks.config import load_task_config
from maskwright.untrusted import read_json_object

_CHECKPOINT_DEPTH = 3
"""A checkpoint's model is RUN/checkpoints/step-N/model."""


@dataclass(frozen=True)
class ExportSource:
    """The model folder, and the run it belongs to."""

    folder: Path
    run: RunFolder | None = None
    checkpoint: str | None = None


def find_source(folder: Path) -> ExportSource:
    """What a model folder belongs to."""
    folder = folder.resolve()
    run = RunFolder(folder.parent)
    if folder == run.model and run.is_run:
        return ExportSource(folder, run)
    if len(folder.parents) >= _CHECKPOINT_DEPTH:
        run = RunFolder(folder.parents[_CHECKPOINT_DEPTH - 1])
        if folder.parent.parent == run.checkpoints and run.is_run:
            return ExportSource(folder, run, checkpoint=folder.parent.name)
    return ExportSource(folder)


def choose_folder(name: str, source: ExportSource, target: str) -> Path:
    """Beside the run or the model folder; a hub id's in the working folder."""
    if not Path(name).is_dir():
        return Path(f"{Path(name).name}-{target}")
    origin = source.run.path if source.run is not None else source.folder
    parts = [origin.name, source.checkpoint, target]
    beside = origin.with_name("-".join(part for part in parts if part is not None))
    return Path(os.path.relpath(beside))


def read_origin(source: ExportSource) -> Origin:
    """Facts about exactly these weights: a checkpoint does not get the figures of the finished run."""
    run = source.run
    if run is None:
        return Origin()
    config = load_config(run.config_file)
    if source.checkpoint is not None:
        return Origin(config, _read_progress(run, source.checkpoint.removeprefix("step-")))
    return Origin(config, run.read_final() if run.is_finished else {}, _find_beginning(config))


def _find_beginning(config: Config) -> str | None:
    """The model that was continued; a run that only gave it a head is looked through."""
    name = config.model.from_
    before = None if name is None else RunFolder(Path(name))
    if before is None or not before.is_run:
        return name
    earlier = load_config(before.config_file)
    return earlier.model.from_ if earlier.model.freeze_encoder else name


def _read_progress(run: RunFolder, step: str) -> dict[str, Any]:
    """The progress of a checkpoint, by its name; empty for other names."""
    if not step.isdigit():
        return {}
    tokens = [int(line["tokens"]) for line in run.read_metrics() if line.get("step") == int(step) and "tokens" in line]
    return {"steps": int(step)} | ({"tokens": tokens[-1]} if tokens else {})


_COUNTS = {"train_examples": "training examples", "examples": "held-out examples", "steps": "steps"}


def read_task_origin(run: RunFolder | None, is_checkpoint: bool) -> TaskOrigin:
    """Facts about exactly these weights: a checkpoint does not get the figures of the finished run."""
    if run is None:
        return TaskOrigin()
    file = run.path / TASK_FILE
    settings = load_task_config(file).model_dump(exclude_none=True) if file.is_file() else {}
    if is_checkpoint or not run.is_finished:
        return TaskOrigin(settings)
    figures = run.read_final(*_COUNTS)
    counts = {label: figures[name] for name, label in _COUNTS.items()}
    return TaskOrigin(settings, list_scores(figures), counts, _describe_seeds(run))


def _describe_seeds(run: RunFolder) -> str:
    """What the other seeds of a run say of its figures; empty for the run of a single seed."""
    file = run.path.parent / SUMMARY_FILE
    if not (SEED_NAME.fullmatch(run.path.name) and file.is_file()):
        return ""
    summary = read_json_object(file)
    scores, num_seeds = summary.get("scores"), len(summary.get("seeds") or ())
    if not isinstance(scores, dict) or num_seeds < 2:
        return ""
    means = ", ".join(f"{name} {_describe_spread(one)}" for name, one in scores.items() if isinstance(one, dict))
    best = f", chosen as the best by {summary.get('metric')}" if summary.get("best") == run.path.name else ""
    return f"This is {run.path.name} of {num_seeds} seeds{best}. Mean ± standard deviation over the seeds: {means}."


def _describe_spread(values: dict[str, Any]) -> str:
    return f"{format_score(values.get('mean'))} ± {format_score(values.get('deviation'))}"


def copy_settings(run: RunFolder | None, folder: Path) -> None:
    if run is None:
        return
    shutil.copyfile(run.config_file, folder / TRAINING_CONFIG_FILE)
    if (run.path / TASK_FILE).is_file():
        shutil.copyfile(run.path / TASK_FILE, folder / TASK_FILE)
