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

from safetensors.torch import load_file, save_file

from maskwright.errors import InputError
from maskwright.models.pretrained import MODEL_FOLDER, WEIGHTS_FILE, list_checkpoints
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.objectives.saving import load_weights
from maskwright.storage import read_json, whole_folder, write_text
from maskwright.training.history import History
from maskwright.training.optimizers import OptimizerSet
from maskwright.training.state import TrainingState

_OPTIMIZER_FILE = "optimizer.safetensors"
_STATE_FILE = "state.json"
_CHECKED_FILES = (f"{MODEL_FOLDER}/{WEIGHTS_FILE}", _OPTIMIZER_FILE)


def save_checkpoint(
    folder: Path,
    model: MaskedLanguageModel,
    optimizers: OptimizerSet,
    state: TrainingState,
    history: History,
    tokenizer: Any = None,
    keep: int | None = None,
) -> Path:
    """Write `folder/step-N`; with `keep`, all but the newest are removed afterwards."""
    checkpoint = folder / f"step-{state.step}"
    with whole_folder(checkpoint) as temporary:
        model.save_pretrained(temporary / MODEL_FOLDER, tokenizer)
        save_file(
            {name: tensor.detach().cpu().contiguous() for name, tensor in optimizers.state_tensors().items()},
            temporary / _OPTIMIZER_FILE,
        )
        checksums = {name: _checksum(temporary / name) for name in _CHECKED_FILES}
        values = {"state": asdict(state), "history": history.history, "checksums": checksums}
        write_text(temporary / _STATE_FILE, json.dumps(values, indent=2) + "\n")
    if keep is not None:
        for old in list_checkpoints(folder)[keep:]:
            shutil.rmtree(old)
    return checkpoint


def load_checkpoint(
    checkpoint: Path, model: MaskedLanguageModel, optimizers: OptimizerSet
) -> tuple[TrainingState, History]:
    """Put a checkpoint's weights and optimizer state in place."""
    values = read_verified_state(checkpoint)
    load_weights(model, checkpoint / MODEL_FOLDER)
    optimizers.load_state_tensors(load_file(checkpoint / _OPTIMIZER_FILE))
    return TrainingState(**values["state"]), History(values["history"])


def find_resumable(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that verifies, and a sentence for each newer one that does not."""
    problems = []
    for checkpoint in list_checkpoints(folder):
        try:
            read_verified_state(checkpoint)
        except InputError as error:
            problems.append(f"checkpoint {checkpoint.name} is unusable: {error}")
        else:
            return checkpoint, problems
    return None, problems


def read_verified_state(checkpoint: Path) -> dict[str, Any]:
    file = checkpoint / _STATE_FILE
    if not file.is_file():
        raise InputError(f"{file} is missing")
    values = read_json(file)
    for name, expected in values["checksums"].items():
        path = checkpoint / name
        if not path.is_file():
            raise InputError(f"{path} is missing")
        if _checksum(path) != expected:
            raise InputError(f"{path} does not match its checksum")
    return values


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
