"""A run in an object store: the files of its folder under STORE/NAME, from which any machine can resume it.

Objects appear there one by one, so two of them say what is whole: a checkpoint counts from the moment its checksums are
there, which are uploaded last, and a run is finished from its final.json on. What is fetched is checked against the
checksums.
"""

from __future__ import annotations

import json
import os
import re
import socket
import tempfile
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

from maskwright.config import Config
from maskwright.errors import InputError, NewerFormatError, RunError
from maskwright.models.files.model_folder import CHECKPOINTS_FOLDER, MODEL_FOLDER, list_checkpoints
from maskwright.models.files.stored_model import fetch_folder
from maskwright.runs.folder import RunFolder, check_same_config
from maskwright.storage import PARSING_ERRORS, whole_folder
from maskwright.stores.addresses import StoreUrl, parse_store
from maskwright.stores.objects import (
    check_writable,
    delete_folder,
    delete_objects,
    fetch_object,
    list_names,
    measure_object,
    read_object,
    upload_file,
    write_object,
)
from maskwright.suggestions import OVERWRITE
from maskwright.training.checkpoints import CHECKSUMS_FILE, check_whole, is_whole, step_of

Say = Callable[[str], None]
_ANY_RUN = RunFolder(Path())
_FINAL_FILE, _CONFIG_FILE, _DATA_FILE = (
    path.name for path in (_ANY_RUN.final_file, _ANY_RUN.config_file, _ANY_RUN.data_file)
)
_OWNER_FILE = "owner.json"
_TRACKER_IDS = f"{_ANY_RUN.trackers.name}/ids.json"
_CHECKPOINT_PART = re.compile(rf"{CHECKPOINTS_FOLDER}/step-(0|[1-9][0-9]*)/(.+)")


class RunStore:
    """The copy of a run in a store."""

    def __init__(self, url: StoreUrl) -> None:
        self.url = url
        self._versions: dict[str, tuple[int, int]] = {}
        """Times and sizes of the files that were uploaded."""
        self._owner: dict[str, Any] = {}

    @staticmethod
    def find(config: Config) -> RunStore | None:
        """None if the run has no store."""
        return None if config.run.store is None else RunStore(parse_store(config.run.store) / config.run.name)

    @property
    def is_finished(self) -> bool:
        return measure_object(self.url / _FINAL_FILE) is not None

    def check(self, overwrite: bool) -> None:
        """Refuse a place that cannot be used, or that holds something else or a finished run."""
        names = {name for name in list_names(self.url) if not name.startswith(".")}
        check_writable(self.url)
        if names and not names & {_CONFIG_FILE, _OWNER_FILE}:
            raise InputError(f"{self.url} exists and is not a run; choose another run.name or run.store")
        if _FINAL_FILE in names and not overwrite:
            raise InputError(
                f"{self.url} holds a finished run; choose another run.name, or add {OVERWRITE} to replace that run"
            )

    def bring_up_to_date(self, run: RunFolder, config: Config, say: Say) -> None:
        """Fetch the newest whole checkpoint and the files beside it, if the folder has none that is as new."""
        names = list_names(self.url)
        if not names.keys() >= {_CONFIG_FILE, _DATA_FILE}:  # nothing was begun
            return
        self._check_same(run, config)
        local = next((step_of(path) for path in list_checkpoints(run.checkpoints) if is_whole(path)), -1)
        newer = [step for step in find_whole_steps(names) if step > local]
        if not newer:
            return
        say(f"fetching step {newer[0]} of {self.url}")
        self._fetch_files(run, names)
        for step in newer:
            problem = self._fetch_checkpoint(run, step, names)
            if problem is None:
                return
            say(f"warning: step {step} in {self.url} is unusable: {problem}; falling back to an earlier one")
        if local < 0:
            raise InputError(
                f"{self.url} has no whole checkpoint to go on from; restore one, or add {OVERWRITE} to begin anew"
            )

    def _check_same(self, run: RunFolder, config: Config) -> None:
        with tempfile.TemporaryDirectory() as folder:
            stored = RunFolder(Path(folder))
            for name in (_CONFIG_FILE, _DATA_FILE):
                fetch_object(self.url / name, stored.path / name)
            check_same_config(stored, config, str(self.url))
            if run.data_file.is_file() and run.read_fingerprint() != stored.read_fingerprint():
                raise InputError(
                    f"{self.url} is a run on other texts or another tokenizer than {run.path}; choose another run.name"
                )

    def _fetch_files(self, run: RunFolder, names: Iterable[str]) -> None:
        """Those that a run goes on with; its configuration first, so that a folder left half-filled is a run."""
        for name in sorted(filter(_is_beside, names), key=lambda name: name != _CONFIG_FILE):
            if not name.startswith(f"{MODEL_FOLDER}/"):
                fetch_file(self.url / name, run.path / name)

    def _fetch_checkpoint(self, run: RunFolder, step: int, names: Iterable[str]) -> str | None:
        """Why it cannot be used, if so."""
        folder = run.checkpoints / f"step-{step}"
        try:
            with whole_folder(folder) as temporary:
                for name in list_checkpoint(names, step):
                    (temporary / name).parent.mkdir(parents=True, exist_ok=True)
                    fetch_object(self.url / CHECKPOINTS_FOLDER / folder.name / name, temporary / name)
                _check_fetched(temporary)
        except _DamagedError as error:
            return str(error)
        return None

    def claim(self) -> None:
        """From now on this process is the one that uploads; an earlier one finds out before its next upload."""
        self._owner = {
            "host": socket.gethostname(),
            "process": os.getpid(),
            "since": datetime.now().astimezone().isoformat(" ", "seconds"),
            "token": uuid.uuid4().hex,
        }
        write_object(self.url / _OWNER_FILE, json.dumps(self._owner).encode())

    def check_owner(self) -> None:
        place = self.url / _OWNER_FILE
        try:
            owner = {} if measure_object(place) is None else json.loads(read_object(place))
        except PARSING_ERRORS:
            owner = {}
        if not isinstance(owner, dict) or owner.get("token") != self._owner["token"]:
            by = "another process"
            if isinstance(owner, dict) and owner:
                by = f"process {owner.get('process')} on {owner.get('host')} (since {owner.get('since')})"
            raise TakenOverError(f"{self.url} was taken over by {by}, and this process uploads no more")

    def clear(self) -> None:
        """Delete the objects of a run; what says that something is whole goes first, the configuration last."""
        ours = [name for name in list_names(self.url) if _is_ours(name)]
        order = {_FINAL_FILE: 0, _CONFIG_FILE: 3}
        self._delete(sorted(ours, key=lambda name: order.get(name, 1 if name.endswith(f"/{CHECKSUMS_FILE}") else 2)))

    def upload_files(self, run: RunFolder) -> None:
        """The files beside the checkpoints, as far as they have changed, but not yet final.json."""
        for path in sorted(run.path.rglob("*")):
            name = path.relative_to(run.path).as_posix()
            if _is_beside(name):
                try:
                    self._upload(path, name)
                except FileNotFoundError:  # it was removed or is being replaced
                    continue

    def _upload(self, path: Path, name: str) -> None:
        stat = path.stat()
        version = (stat.st_mtime_ns, stat.st_size)
        if path.is_file() and self._versions.get(name) != version:
            upload_file(path, self.url / name)
            self._versions[name] = version

    def upload_checkpoint(self, checkpoint: Path) -> None:
        """The checksums come last; while one of that step is replaced, there is none."""
        place = self.url / CHECKPOINTS_FOLDER / checkpoint.name
        delete_objects([place / CHECKSUMS_FILE])
        files = (path for path in sorted(checkpoint.rglob("*")) if path.is_file())
        for path in sorted(files, key=lambda path: path.name == CHECKSUMS_FILE):
            upload_file(path, place / path.relative_to(checkpoint).as_posix())

    def list_whole_steps(self) -> list[int]:
        return find_whole_steps(list_names(self.url))

    def keep_checkpoints(self, steps: Collection[int]) -> None:
        """Delete the checkpoints of other steps, and what broken uploads have left."""
        names = list_names(self.url)
        found = {int(part[1]) for part in map(_CHECKPOINT_PART.fullmatch, names) if part}
        for step in sorted(found - set(steps)):
            checkpoint = self.url / CHECKPOINTS_FOLDER / f"step-{step}"
            delete_objects([checkpoint / CHECKSUMS_FILE])
            delete_folder(checkpoint)

    def upload_final(self, run: RunFolder) -> None:
        """The run is finished, and nobody owns it any more."""
        upload_file(run.final_file, self.url / _FINAL_FILE)
        self._delete([_OWNER_FILE])

    def _delete(self, names: Sequence[str]) -> None:
        delete_objects([self.url / name for name in names])


class TakenOverError(RunError):
    """Another process uploads the run."""


class _DamagedError(Exception):
    """What was fetched does not match its checksums."""


def _check_fetched(checkpoint: Path) -> None:
    try:
        check_whole(checkpoint)
    except NewerFormatError:
        raise
    except InputError as error:
        raise _DamagedError(str(error).replace(f"{checkpoint}{os.sep}", "")) from error


def _is_ours(name: str) -> bool:
    """Whether a run in a store has such an object."""
    top = PurePosixPath(name).parts[0]
    is_file = top in (_OWNER_FILE, *(path.name for path in _ANY_RUN.files)) and top == name
    return is_file or (top != name and top in [path.name for path in _ANY_RUN.folders])


def _is_beside(name: str) -> bool:
    """Whether a file belongs to a run, and neither to a numbered checkpoint nor to what says that the run is finished.

    Trackers keep more than their ids on this machine, which stays here.
    """
    is_hidden = any(part.startswith(".") for part in PurePosixPath(name).parts)
    is_special = name in (_FINAL_FILE, _OWNER_FILE) or _CHECKPOINT_PART.fullmatch(name) is not None
    is_tracker = PurePosixPath(name).parts[0] == PurePosixPath(_TRACKER_IDS).parts[0] and name != _TRACKER_IDS
    return _is_ours(name) and not (is_hidden or is_special or is_tracker)


def find_whole_steps(names: Iterable[str]) -> list[int]:
    """Of a run's objects: the steps of whole checkpoints, newest first."""
    parts = [part for part in map(_CHECKPOINT_PART.fullmatch, names) if part]
    return sorted((int(part[1]) for part in parts if part[2] == CHECKSUMS_FILE), reverse=True)


def list_checkpoint(names: Iterable[str], step: int) -> list[str]:
    """The objects of a checkpoint, by their names in it."""
    parts = [part for part in map(_CHECKPOINT_PART.fullmatch, names) if part]
    return sorted(part[2] for part in parts if int(part[1]) == step)


def fetch_file(url: StoreUrl, path: Path) -> None:
    """An object as a file that is whole or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        fetch_object(url, temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def fetch_checkpoint(url: StoreUrl) -> Path:
    """A checkpoint in a store, or the newest whole one of a run there, as a folder in the cache of this machine."""

    def choose(names: Collection[str]) -> list[str]:
        if CHECKSUMS_FILE in names:
            return list(names)
        return [
            f"{CHECKPOINTS_FOLDER}/step-{step}/{name}"
            for step in find_whole_steps(names)[:1]
            for name in list_checkpoint(names, step)
        ]

    return fetch_folder(url, choose)
