"""Checkpoints of a sharded model: every process writes the rows that it has, and none has the whole.

All processes fill one temporary folder on their shared file system. When each has told that its files are there, the
main one adds the rest, the checksums last, and gives the folder its name: what was written by then is never taken for a
checkpoint.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from maskwright.errors import RunError
from maskwright.models.files.model_folder import MODEL_FOLDER, copy_to_cpu
from maskwright.models.files.tensor_parts import TensorPart, name_part, write_parts
from maskwright.objectives.objective import Objective
from maskwright.objectives.saving import ModelSnapshot
from maskwright.storage import count_free_bytes, replace_folder, sync
from maskwright.training.checkpoints import (
    AVERAGE_FILE,
    OPTIMIZER_FILE,
    Retention,
    checksum,
    copy_values,
    estimate_bytes,
    free_oldest,
    name_best,
    remove_old,
    write_checksums,
    write_tables,
    write_values,
)
from maskwright.training.distributed.world import World, take_part
from maskwright.training.state import History, TrainingState

_numbers = itertools.count()
"""Of the checkpoints of this process; the same in all, which write them together."""


@dataclass(frozen=True)
class PartContents:
    """What one process has of a checkpoint, copied so that training can continue while it is written."""

    number: int
    step: int
    world: World
    model: ModelSnapshot
    """Without weights."""
    files: Mapping[str, Mapping[str, TensorPart]]
    values: dict[str, Any]
    tables: Mapping[str, Tensor]
    copied: torch.cuda.Event | None

    @property
    def num_bytes(self) -> int:
        """About those of all processes."""
        return self.world.size * sum(part.rows.nbytes for parts in self.files.values() for part in parts.values())


def collect_parts(
    model: Objective,
    world: World,
    weights: Mapping[str, Tensor],
    optimizer_state: Mapping[str, Tensor],
    average: Mapping[str, Tensor] | None,
    state: TrainingState,
    history: History,
    tokenizer: Any,
    tables: Mapping[str, Tensor],
) -> PartContents:
    """Copy everything, with asynchronous copies from a GPU; `model` tells the files that its weights go into."""

    def take(tensors: Mapping[str, Tensor]) -> dict[str, TensorPart | None]:
        return {name: take_part(tensor, world.is_main) for name, tensor in tensors.items()}

    placed = model.place_parts(take(weights))
    files = {f"{MODEL_FOLDER}/{file}": _copy(parts) for file, parts in placed.items()}
    files[OPTIMIZER_FILE] = _copy(take(optimizer_state))
    if average is not None:
        files[AVERAGE_FILE] = _copy(take(average))
    copied = torch.cuda.Event() if torch.cuda.is_available() else None
    if copied is not None:
        copied.record()
    described, values = model.describe(tokenizer), copy_values(state, history)
    return PartContents(next(_numbers), state.step, world, described, files, values, tables, copied)


def _copy(parts: Mapping[str, TensorPart | None]) -> dict[str, TensorPart]:
    own = {name: part for name, part in parts.items() if part is not None}
    copies = copy_to_cpu({name: part.rows for name, part in own.items()}, wait=False)
    return {name: TensorPart(copies[name], part.first_row, part.num_rows) for name, part in own.items()}


def prepare_parts(folder: Path, step: int, world: World) -> bool:
    """Make the temporary folder; False if not all processes see it. All call this together."""
    temporary = _name_temporary(folder, step)
    is_new = True
    if world.is_main:
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir(parents=True)
        except OSError:  # or an earlier attempt's files cannot be removed; writing a whole checkpoint says why
            is_new = False
    world.sum_facts([0.0])
    return world.sum_facts([float(is_new and temporary.is_dir())])[0] == world.size


def write_in_parts(
    folder: Path, contents: PartContents, retention: Retention | None = None, notes: list[str] | None = None
) -> Path:
    """Write this process's files; the main process waits for those of all, and returns when the checkpoint is whole.

    On a disk that is nearly full it makes room first; `notes` gets a sentence for each checkpoint that goes for it.
    """
    checkpoint, temporary = folder / f"step-{contents.step}", _name_temporary(folder, contents.step)
    retention = retention or Retention()
    if contents.copied is not None:
        contents.copied.synchronize()
    topic = f"checkpoint {contents.number}"
    problem: OSError | None = None
    try:
        if contents.world.is_main:
            _make_room(folder, contents, retention, [] if notes is None else notes)
        note: dict[str, Any] = {"checksums": _write_files(temporary, contents)}
    except Exception as error:
        contents.world.leave_note(topic, {"problem": str(error)})
        if not isinstance(error, OSError):
            raise
        problem = error
    else:
        contents.world.leave_note(topic, note)
    if contents.world.is_main:  # also if its own part failed: the others write to the folder until they leave a note
        try:
            _complete(checkpoint, temporary, contents, topic)
            remove_old(folder, checkpoint, retention)
        except OSError as error:
            raise _cannot_write(checkpoint, str(error)) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    elif problem is not None:
        raise _cannot_write(checkpoint, str(problem)) from problem
    return checkpoint


def _write_files(temporary: Path, contents: PartContents) -> dict[str, str]:
    """The checksums of the files, by their names in the checkpoint."""
    checksums = {}
    for file, parts in contents.files.items():
        name = name_part(file, contents.world.rank, contents.world.size)
        path = temporary / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_parts(path, parts)
        sync(path)
        checksums[name] = checksum(path)
    return checksums


def _complete(checkpoint: Path, temporary: Path, contents: PartContents, topic: str) -> None:
    try:
        notes = contents.world.read_notes(topic)
    except RunError as error:
        raise _cannot_write(checkpoint, str(error)) from error
    for rank, note in enumerate(notes):
        if "problem" in note:
            raise _cannot_write(checkpoint, f"rank {rank}: {note['problem']}")
    contents.model.write(temporary / MODEL_FOLDER)
    write_tables(temporary, contents.tables)
    write_values(temporary, contents.values)
    known = {name: digest for note in notes for name, digest in note["checksums"].items()}
    write_checksums(temporary, known)
    for path in temporary.rglob("*"):
        if path.is_file() and path.relative_to(temporary).as_posix() not in known:
            sync(path)
    replace_folder(temporary, checkpoint)
    sync(checkpoint.parent)
    values = contents.values["state"]
    name_best(checkpoint.parent, values["best_step"], values["best_loss"])


def _make_room(folder: Path, contents: PartContents, retention: Retention, notes: list[str]) -> None:
    checkpoint, num_bytes = folder / f"step-{contents.step}", estimate_bytes(folder, contents.num_bytes)
    while count_free_bytes(folder) < num_bytes:
        removed = free_oldest(folder, retention, checkpoint, num_bytes)
        if removed is None:  # it may fit nevertheless
            return
        notes.append(f"the disk is full: {removed} is removed to make room for {checkpoint}")


def _name_temporary(folder: Path, step: int) -> Path:
    return folder / f".step-{step}.tmp"


def _cannot_write(checkpoint: Path, problem: str) -> RunError:
    return RunError(f"cannot write {checkpoint}: {problem}; other checkpoints are untouched")
