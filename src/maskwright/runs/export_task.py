"""Export a fine-tuned model: what the run tells of it, and the folder others read."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from maskwright.errors import InputError
from maskwright.export.card import CARD_FILE, TRAINING_CONFIG_FILE, CardOptions
from maskwright.export.task_card import TaskOrigin, build_task_card
from maskwright.export.task_folder import export_task_huggingface
from maskwright.runs.finetune import TASK_FILE
from maskwright.runs.finetune_report import list_scores
from maskwright.runs.folder import RunFolder
from maskwright.runs.texts import Say
from maskwright.storage import write_text
from maskwright.tasks.config import load_task_config
from maskwright.tasks.model import TaskModel
from maskwright.text.tokenizer import Tokenizer

_COUNTS = {"train_examples": "training examples", "examples": "held-out examples", "steps": "steps"}


def check_task_target(target: str, known: Sequence[str]) -> None:
    if target not in known:
        raise InputError(
            f"--to {target} holds an encoder that was not fine-tuned for a task, and this model was; export it --to"
            f" {' or --to '.join(known)}, or export the model it was made from"
        )


def write_task_onnx(
    model: TaskModel, tokenizer: Tokenizer, folder: Path, *, int8: bool, texts: Sequence[str], say: Say
) -> dict[str, Any]:
    from maskwright.export.task_onnx import export_task_onnx

    return export_task_onnx(model, tokenizer, folder, int8=int8, texts=texts, say=say)


def write_task_folder(
    model: TaskModel,
    tokenizer: Tokenizer,
    folder: Path,
    name: str,
    run: RunFolder | None,
    origin: TaskOrigin,
    card: CardOptions,
    texts: Sequence[str],
    say: Say,
) -> dict[str, Any]:
    """Fill the folder, which will be called `name`; the figures of the comparison."""
    comparison = export_task_huggingface(model, tokenizer, folder, texts=texts, say=say)
    write_text(folder / CARD_FILE, build_task_card(name, model, origin, comparison, card))
    if run is not None:
        shutil.copyfile(run.config_file, folder / TRAINING_CONFIG_FILE)
        if (run.path / TASK_FILE).is_file():
            shutil.copyfile(run.path / TASK_FILE, folder / TASK_FILE)
    return asdict(comparison)


def read_task_origin(run: RunFolder | None, is_checkpoint: bool) -> TaskOrigin:
    """Figures are those of these very weights: a checkpoint has none of the finished run's."""
    if run is None:
        return TaskOrigin()
    file = run.path / TASK_FILE
    settings = load_task_config(file).model_dump(exclude_none=True) if file.is_file() else {}
    if is_checkpoint or not run.is_finished:
        return TaskOrigin(settings)
    figures = run.read_final(*_COUNTS)
    counts = {label: figures[name] for name, label in _COUNTS.items()}
    return TaskOrigin(settings, list_scores(figures), counts)
