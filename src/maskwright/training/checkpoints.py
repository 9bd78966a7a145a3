"""Checkpoints: a usable model, the optimizer's state and where the run stood; safetensors and JSON only.

A checkpoint folder appears under its name only when it is complete, and its checksums are verified before use.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from maskwright.errors import InputError, RunError
from maskwright.models.pretrained import MODEL_FOLDER, list_checkpoints
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.objectives.saving import load_weights
from maskwright.storage import read_json, whole_folder, write_text
from maskwright.training.history import History
from maskwright.training.optimizers import OptimizerSet
from maskwright.training.state import TrainingState

_OPTIMIZER_FILE = "optimizer.safetensors"
_STATE_FILE = "state.json"
_CHECKSUMS_FILE = "checksums.json"


def save_checkpoint(
    folder: Path,
    model: MaskedLanguageModel,
    optimizers: OptimizerSet,
    state: TrainingState,
    history: History,
    tokenizer: Any = None,
    keep: int | None = None,
) -> Path:
    """Write `folder/step-N`; with `keep`, only that many of this one and its predecessors stay."""
    checkpoint = folder / f"step-{state.step}"
    values = {"state": asdict(state), "history": history.history}
    optimizer_state = {name: tensor.detach().cpu().contiguous() for name, tensor in optimizers.state_tensors().items()}
    try:
        with whole_folder(checkpoint) as temporary:
            model.save_pretrained(temporary / MODEL_FOLDER, tokenizer)
            save_file(optimizer_state, temporary / _OPTIMIZER_FILE)
            write_text(temporary / _STATE_FILE, json.dumps(values, indent=2) + "\n")
            checksums = {str(file.relative_to(temporary)): _checksum(file) for file in _list_files(temporary)}
            write_text(temporary / _CHECKSUMS_FILE, json.dumps(checksums, indent=2) + "\n")
    except (OSError, SafetensorError) as error:
        raise RunError(f"cannot write {checkpoint}: {error}; earlier checkpoints are untouched") from error
    if keep is not None:
        existing = list_checkpoints(folder)
        for old in existing[existing.index(checkpoint) + keep :]:
            shutil.rmtree(old)
    return checkpoint


def load_checkpoint(
    checkpoint: Path, model: MaskedLanguageModel, optimizers: OptimizerSet
) -> tuple[TrainingState, History]:
    """Put a checkpoint's weights and optimizer state in place."""
    values = _read_verified_state(checkpoint)
    load_weights(model, checkpoint / MODEL_FOLDER)
    optimizers.load_state_tensors(load_file(checkpoint / _OPTIMIZER_FILE))
    return TrainingState(**values["state"]), History(values["history"])


def find_resumable(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that verifies, and a sentence for each newer one that does not."""
    problems = []
    for checkpoint in list_checkpoints(folder):
        try:
            _read_verified_state(checkpoint)
        except InputError as error:
            problems.append(f"checkpoint {checkpoint.name} is unusable: {error}")
        else:
            return checkpoint, problems
    return None, problems


def _read_verified_state(checkpoint: Path) -> dict[str, Any]:
    for name, expected in _read_present(checkpoint / _CHECKSUMS_FILE).items():
        path = checkpoint / name
        if not path.is_file():
            raise InputError(f"{path} is missing")
        if _checksum(path) != expected:
            raise InputError(f"{path} does not match its checksum")
    return _read_present(checkpoint / _STATE_FILE)


def _read_present(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise InputError(f"{file} is missing")
    return read_json(file)


def _list_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
