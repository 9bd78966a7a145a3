"""Checkpoints: a usable model, the optimizer's state and the training state, in safetensors and JSON only.

A checkpoint folder appears under its name only when it is complete, and its checksums are verified before use. It holds
whole tensors, or the rows of them that each process had (`checkpoint_parts`); any number of processes can resume from
either.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from maskwright.errors import InputError, NewerFormatError, RunError
from maskwright.models.files.model_folder import (
    CONFIG_FILE,
    FORMAT_KEY,
    MODEL_FOLDER,
    WEIGHTS_FILE,
    copy_to_cpu,
    list_checkpoints,
)
from maskwright.models.files.safetensors_file import write_safetensors
from maskwright.models.files.tensor_parts import StoredTensors, find_whole_name, list_part_files
from maskwright.objectives.objective import Objective
from maskwright.objectives.saving import ModelSnapshot
from maskwright.storage import (
    check_format_version,
    count_free_bytes,
    describe_room,
    is_full,
    read_json,
    read_record,
    refuse_unknown_fields,
    restore_folder,
    whole_folder,
    write_text,
)
from maskwright.training.state import History, TrainingState

OPTIMIZER_FILE = "optimizer.safetensors"
AVERAGE_FILE = "average.safetensors"
TABLES_FILE = "masking.safetensors"
"""Tables of the masking, of runs that have any."""
_STATE_FILE = "state.json"
CHECKSUMS_FILE = "checksums.json"
"""Written last."""
_FORMAT_VERSION = 1
"""Version of the files beside the model. Checkpoints without a version are older and are read the same way."""
BEST_FILE = "best.json"
_SUFFIXES = (".json", ".safetensors", ".txt")
"""Suffixes of the files we write; files of other programs have no checksum."""
_LOSSES = ("best_loss", "first_loss")
"""Losses in the state, which are not checked: custom objectives may have any."""
_WEIGHTS = f"{MODEL_FOLDER}/{WEIGHTS_FILE}"
_NEEDED_FILES = (f"{MODEL_FOLDER}/{CONFIG_FILE}", _WEIGHTS, OPTIMIZER_FILE, _STATE_FILE)


@dataclass(frozen=True)
class Retention:
    """Which checkpoints are kept when a new one is written; the best one, if named, is always kept."""

    last: int | None = None
    """The number of newest checkpoints to keep; None keeps all."""
    every_steps: int | None = None
    """Checkpoints of steps that are a multiple of this are never removed."""


@dataclass(frozen=True)
class CheckpointContents:
    """The contents of a checkpoint, copied so that training can continue while they are written."""

    step: int
    model: ModelSnapshot
    optimizer: dict[str, Tensor]
    average: dict[str, Tensor] | None
    values: dict[str, Any]
    copied: torch.cuda.Event | None
    """Set when copies from a GPU may still be on their way."""
    tables: Mapping[str, Tensor] = field(default_factory=dict)


def collect_contents(
    model: Objective,
    optimizer_state: dict[str, Tensor],
    average: dict[str, Tensor] | None,
    state: TrainingState,
    history: History,
    tokenizer: Any = None,
    tables: Mapping[str, Tensor] | None = None,
) -> CheckpointContents:
    """Copy everything; copies from a GPU are asynchronous."""
    contents = CheckpointContents(
        state.step,
        model.snapshot(tokenizer, wait=False),
        copy_to_cpu(optimizer_state, wait=False),
        None if average is None else copy_to_cpu(average, wait=False),
        copy_values(state, history),
        torch.cuda.Event() if torch.cuda.is_available() else None,
        tables or {},
    )
    if contents.copied is not None:
        contents.copied.record()
    return contents


def copy_values(state: TrainingState, history: History) -> dict[str, Any]:
    return {"state": asdict(state), "history": {name: list(values) for name, values in history.history.items()}}


def write_checkpoint(
    folder: Path, contents: CheckpointContents, retention: Retention | None = None, notes: list[str] | None = None
) -> Path:
    """Write `folder/step-N`, and remove what need not stay.

    If the disk is full, old checkpoints are removed one by one (`free_oldest`); `notes` gets a sentence for each.
    """
    if contents.copied is not None:
        contents.copied.synchronize()
    checkpoint, retention = folder / f"step-{contents.step}", retention or Retention()
    num_bytes, values = _count_bytes(contents, folder), contents.values["state"]
    others = "earlier checkpoints"
    while True:
        try:
            _write_files(checkpoint, contents)
            name_best(folder, values["best_step"], values["best_loss"])
        except OSError as error:
            removed = free_oldest(folder, retention, checkpoint, num_bytes) if is_full(error) else None
            if removed is None:
                room = f"; {describe_room(folder, num_bytes)}" if is_full(error) else ""
                is_named = error.filename == str(checkpoint.resolve())
                problem = f"[Errno {error.errno}] {error.strerror}" if is_named else str(error)
                raise RunError(f"cannot write {checkpoint}: {problem}; {others} are untouched{room}") from error
            others = "other checkpoints"
            if notes is not None:
                notes.append(f"the disk is full: {removed} is removed to make room for {checkpoint}")
        else:
            break
    remove_old(folder, checkpoint, retention)
    return checkpoint


def _write_files(checkpoint: Path, contents: CheckpointContents) -> None:
    with whole_folder(checkpoint) as temporary:
        contents.model.write(temporary / MODEL_FOLDER)
        write_safetensors(temporary / OPTIMIZER_FILE, contents.optimizer)
        if contents.average is not None:
            write_safetensors(temporary / AVERAGE_FILE, contents.average)
        write_tables(temporary, contents.tables)
        write_values(temporary, contents.values)
        write_checksums(temporary, {})


def write_tables(checkpoint: Path, tables: Mapping[str, Tensor]) -> None:
    if tables:
        write_safetensors(checkpoint / TABLES_FILE, dict(tables))


def write_values(checkpoint: Path, values: Mapping[str, Any]) -> None:
    write_text(checkpoint / _STATE_FILE, json.dumps({FORMAT_KEY: _FORMAT_VERSION, **values}, indent=2) + "\n")


def write_checksums(checkpoint: Path, known: Mapping[str, str]) -> None:
    """The last file of a checkpoint; checksums that are known are not computed again."""
    files = [file.relative_to(checkpoint).as_posix() for file in _list_files(checkpoint)]
    checksums = {name: known[name] if name in known else checksum(checkpoint / name) for name in files}
    write_text(checkpoint / CHECKSUMS_FILE, json.dumps({**known, **checksums}, indent=2) + "\n")


def _count_bytes(contents: CheckpointContents, folder: Path) -> int:
    parts = (contents.optimizer, contents.average or {}, contents.tables)
    num_bytes = contents.model.num_bytes + sum(tensor.nbytes for part in parts for tensor in part.values())
    return estimate_bytes(folder, num_bytes)


def estimate_bytes(folder: Path, tensor_bytes: int) -> int:
    """The room for a checkpoint of so large tensors, going by the previous one too, which has small files beside."""
    return max(tensor_bytes, *(_measure(path) for path in list_checkpoints(folder)[:1]), 0)


def _measure(folder: Path) -> int:
    """The bytes that a folder takes on the disk, rounded up to whole blocks per file."""
    stats = [file.stat() for file in _list_files(folder)]
    return sum(max(stat.st_size, 512 * getattr(stat, "st_blocks", 0)) for stat in stats)


def free_oldest(
    folder: Path, retention: Retention, newest: Path, num_bytes: int, *, keeps_whole: bool = True
) -> Path | None:
    """Remove the oldest checkpoint that is not needed, to make room for so many bytes; returns it, if any.

    Milestones, the best and `newest` stay, and with `keeps_whole` a whole checkpoint is there at any moment. None is
    removed if removing all of them would still not make enough room.
    """
    best, existing = find_best(folder), list_checkpoints(folder)
    kept = [path for path in existing if path in (best, newest) or _is_milestone(path, retention.every_steps)]
    if keeps_whole and not any(map(is_whole, kept)):
        kept += [next(filter(is_whole, existing), newest)]
    old = [path for path in existing if path not in kept]
    if not old or count_free_bytes(folder) + sum(map(_measure, old)) < num_bytes:
        return None
    shutil.rmtree(old[-1])
    return old[-1]


def remove_old(folder: Path, newest: Path, retention: Retention) -> None:
    best = None if retention.last is None else find_best(folder)
    steps = [step_of(path) for path in list_checkpoints(folder)]
    for step in list_old_steps(steps, step_of(newest), retention, None if best is None else step_of(best)):
        shutil.rmtree(folder / f"step-{step}")


def list_old_steps(steps: Sequence[int], newest: int, retention: Retention, best: int | None) -> list[int]:
    """Of the steps with a checkpoint, newest first, those that need not stay beside `newest`."""
    if retention.last is None:
        return []
    kept = {best, *(step for step in steps if retention.every_steps and step % retention.every_steps == 0)}
    return [step for step in steps[steps.index(newest) + retention.last :] if step not in kept]


def remove_checkpoints(folder: Path, keep_every_steps: int | None = None) -> None:
    """Remove the checkpoints of a finished run, except those of steps that are a multiple of `keep_every_steps`."""
    if not folder.is_dir():  # none could be written
        return
    milestones = {path for path in list_checkpoints(folder) if _is_milestone(path, keep_every_steps)}
    for path in set(folder.iterdir()) - milestones:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if not milestones:
        folder.rmdir()


def _is_milestone(checkpoint: Path, every_steps: int | None) -> bool:
    return every_steps is not None and step_of(checkpoint) % every_steps == 0


def name_best(folder: Path, step: int | None, loss: float | None) -> None:
    """Record which checkpoint is the best so far; later checkpoints repeat it, in case the process is killed in
    between.
    """
    if step is not None:
        write_text(folder / BEST_FILE, json.dumps({"step": step, "value": loss}) + "\n")


def find_best(folder: Path) -> Path | None:
    """The checkpoint recorded as the best one, if any."""
    file = folder / BEST_FILE
    if not file.is_file():
        return None
    values = read_json(file)
    if not isinstance(values.get("step"), int):
        raise InputError(f"{file} names no step; delete it, and the next best checkpoint is named anew")
    return folder / f"step-{values['step']}"


@dataclass(frozen=True)
class StoredRun:
    """The contents of a verified checkpoint beside the model."""

    state: TrainingState
    history: History
    optimizer: Mapping[str, Tensor]
    """Read when they are asked for."""
    average: Mapping[str, Tensor] | None
    tables: Mapping[str, Tensor]
    """Of the masking; none in checkpoints of strategies without any."""


def read_checkpoint(checkpoint: Path) -> StoredRun:
    state, history = _read_verified_state(checkpoint)
    average = checkpoint / AVERAGE_FILE
    has_average = average.is_file() or list_part_files(average)
    tables = checkpoint / TABLES_FILE
    return StoredRun(
        state,
        history,
        StoredTensors(checkpoint / OPTIMIZER_FILE),
        StoredTensors(average) if has_average else None,
        dict(StoredTensors(tables)) if tables.is_file() else {},
    )


def is_checkpoint(folder: Path) -> bool:
    return (folder / _STATE_FILE).is_file()


def clear_leftovers(folder: Path) -> None:
    """Clean up after a process that was killed while saving: restore a folder that was moved aside, remove half-written
    ones.
    """
    for aside in folder.glob(".*.old"):
        restore_folder(folder / aside.name.removeprefix(".").removesuffix(".old"))
    for leftover in (*folder.glob(".*.old"), *folder.glob(".*.tmp")):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


def find_resumable(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest valid checkpoint, and a sentence for each newer one that is damaged.

    A checkpoint of a later version is not damaged, and an older one must not replace its work, so it raises
    NewerFormatError.
    """
    checkpoints = list_checkpoints(folder)
    problems = [
        f"checkpoint {path.name} is unusable: it is not a folder step-N, which every checkpoint is"
        for path in sorted(set(folder.glob("step-*")) - set(checkpoints))
    ]
    for checkpoint in checkpoints:
        try:
            _read_verified_state(checkpoint)
        except NewerFormatError:
            raise
        except InputError as error:
            problems.append(f"checkpoint {checkpoint.name} is unusable: {error}")
        else:
            return checkpoint, problems
    return None, problems


def is_whole(checkpoint: Path) -> bool:
    """Whether all files have their checksums."""
    try:
        check_whole(checkpoint)
    except InputError:
        return False
    return True


def check_whole(checkpoint: Path) -> None:
    """An InputError names what is missing or damaged, and a NewerFormatError what this version cannot read."""
    _read_verified_state(checkpoint)


def has_finite_weights(checkpoint: Path) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in StoredTensors(checkpoint / _WEIGHTS).values())


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def _read_verified_state(checkpoint: Path) -> tuple[TrainingState, History]:
    checksums = _read_present(checkpoint / CHECKSUMS_FILE)
    files = {str(path.relative_to(checkpoint)) for path in _list_files(checkpoint)}
    written = {name for name in files if name.endswith(_SUFFIXES)}
    for whole in {find_whole_name(name) for name in checksums} - checksums.keys():
        list_part_files(checkpoint / whole)
    needed = set(_NEEDED_FILES) - {find_whole_name(name) for name in checksums}
    for name in sorted({*needed, *written, *checksums} - {CHECKSUMS_FILE}):
        path = checkpoint / name
        if name not in files:  # a damaged list may name what no disk can hold, so the disk is not asked
            raise InputError(f"{path} is missing")
        if name not in checksums:
            raise InputError(f"{checkpoint / CHECKSUMS_FILE} has no checksum of {name}")
        if checksum(path) != checksums[name]:
            raise InputError(f"{path} does not match its checksum")
    state, history = _read_state(checkpoint / _STATE_FILE)
    number = checkpoint.name.removeprefix("step-")
    if number.isdecimal() and int(number) != state.step:
        raise InputError(f"{checkpoint / _STATE_FILE} is damaged: it is that of step {state.step}")
    return state, history


def _read_state(file: Path) -> tuple[TrainingState, History]:
    values = _read_present(file)
    check_format_version(values.get(FORMAT_KEY, 1), _FORMAT_VERSION, file)
    refuse_unknown_fields(values, (FORMAT_KEY, "state", "history"), file)
    state = values.get("state")
    if not (isinstance(state, dict) and "step" in state and "history" in values):
        raise InputError(f"{file} does not say where the run stood; it is damaged")
    refuse_unknown_fields(state, {field.name for field in fields(TrainingState)}, file)
    stored = read_record(TrainingState, state, file)
    for name, value in asdict(stored).items():
        if isinstance(value, int | float) and name not in _LOSSES and not 0 <= value < math.inf:
            raise InputError(f"{file} is damaged: '{name}' is {value}")
    return stored, History(read_record(dict[str, list[float]], values["history"], file))


def _read_present(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise InputError(f"{file} is missing")
    return read_json(file)


def _list_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
