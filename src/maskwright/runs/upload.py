"""Uploads a run to its store while it trains: a thread that looks for new checkpoints, and the rest at the end."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import TracebackType

from maskwright.config import Config
from maskwright.errors import InputError, RunError
from maskwright.models.files.model_folder import list_checkpoints
from maskwright.runs.folder import RunFolder, check_same_config, find_run
from maskwright.runs.run_store import RunStore, Say, TakenOverError
from maskwright.training.checkpoints import CHECKSUMS_FILE, Retention, find_best, list_old_steps, step_of
from maskwright.training.distributed.world import World

_LOOK_S = 1.0
_PAUSE_S = 15.0
"""After a failure; each object has been tried again for two minutes before that."""
_HELD_FOLDER = ".uploading.tmp"
"""A name that the next start of the run clears away."""
_Stamp = tuple[int, int]


class RunUpload:
    """Inside the block checkpoints go to the store, the newest first; at its end all that is left.

    A failure in between is a warning, and tried again. At the end of a finished run it is a `RunError`.
    """

    def __init__(self, store: RunStore, run: RunFolder, retention: Retention, say: Say) -> None:
        self._store, self._run, self._retention, self._say = store, run, retention, say
        self._uploaded: dict[int, _Stamp | None] = {}
        """What the store has, by step; None: not of a checkpoint that is here."""
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="upload", daemon=True)

    def __enter__(self) -> RunUpload:
        self.begin()
        self._thread.start()
        return self

    def begin(self) -> None:
        self._store.claim()
        here = {step_of(path): path for path in list_checkpoints(self._run.checkpoints)}
        for step in self._store.list_whole_steps():
            self._uploaded[step] = _find_stamp(here[step]) if step in here else None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._has_ended.set()
        self._thread.join()
        if error is None:
            self._complete()
            return
        try:
            self._upload_all()
        except (RunError, InputError, OSError) as problem:
            self._say(f"warning: {problem}; {self._store.url} lacks what was saved last")

    def _work(self) -> None:
        pause_s, is_failing = _LOOK_S, False
        while not self._has_ended.wait(pause_s):
            try:
                self._upload_all()
            except TakenOverError as error:
                self._say(f"warning: {error}; training goes on")
                return
            except (RunError, InputError, OSError) as error:
                if not is_failing:
                    self._say(f"warning: {error}; training goes on, and the upload is tried again")
                pause_s, is_failing = _PAUSE_S, True
            else:
                if is_failing:
                    self._say(f"{self._store.url} is up to date again")
                pause_s, is_failing = _LOOK_S, False

    def _upload_all(self) -> None:
        """Until nothing new is there."""
        while (checkpoint := self._find_next()) is not None:
            self._upload(checkpoint)

    def _find_next(self) -> Path | None:
        """The newest checkpoint that the store lacks."""
        kept = self._list_kept()
        for path in list_checkpoints(self._run.checkpoints):
            stamp = _find_stamp(path)
            if stamp is not None and step_of(path) in kept and self._uploaded.get(step_of(path)) != stamp:
                return path
        return None

    def _list_kept(self) -> set[int]:
        """The steps whose checkpoints belong into the store now."""
        here = [step_of(path) for path in list_checkpoints(self._run.checkpoints)]
        if not here:
            return set(self._uploaded)
        steps = sorted({*here, *(step for step in self._uploaded if step < here[0])}, reverse=True)
        best = find_best(self._run.checkpoints)
        return set(steps) - set(
            list_old_steps(steps, here[0], self._retention, None if best is None else step_of(best))
        )

    def _upload(self, checkpoint: Path) -> None:
        """The files beside it first, so that they are at least as new; then checkpoints that need not stay go."""
        self._store.check_owner()
        self._store.upload_files(self._run)
        stamp, step = _find_stamp(checkpoint), step_of(checkpoint)
        with _held(checkpoint, stamp) as copy:
            if copy is None:  # it was removed or replaced; the next look finds a newer one
                return
            self._uploaded.pop(step, None)
            self._store.upload_checkpoint(copy)
        self._uploaded[step] = stamp
        kept = self._list_kept()
        self._store.keep_checkpoints(kept & self._uploaded.keys())
        self._uploaded = {step: found for step, found in self._uploaded.items() if step in kept}

    def catch_up(self) -> None:
        """Upload the checkpoints that are here."""
        self.begin()
        self._upload_all()

    def _complete(self) -> None:
        """Upload what is left of a finished run."""
        try:
            self._upload_all()
            self._store.check_owner()
            self._store.upload_files(self._run)
            self._store.upload_final(self._run)
        except TakenOverError:
            raise
        except (RunError, InputError, OSError) as error:
            problem = f"{self._run.path} is finished, but {self._store.url} lacks a part of it"
            raise RunError(f"{problem}: {error}; the same command uploads the rest") from error
        self._say(f"{self._store.url}  the run in its store")


def _find_stamp(checkpoint: Path) -> _Stamp | None:
    """What a checkpoint of the same name that is written anew does not have; None if it is gone."""
    try:
        stat = (checkpoint / CHECKSUMS_FILE).stat()
    except FileNotFoundError:
        return None
    return stat.st_ino, stat.st_mtime_ns


@contextmanager
def _held(checkpoint: Path, stamp: _Stamp | None) -> Iterator[Path | None]:
    """Another name for its files, as training may remove or replace the checkpoint; None if it has done so already."""
    folder = checkpoint.parent / _HELD_FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    try:
        copy = folder / checkpoint.name
        try:
            shutil.copytree(checkpoint, copy, copy_function=_link)
        except OSError:
            if stamp is not None and _find_stamp(checkpoint) == stamp:
                raise
        yield copy if stamp is not None and _find_stamp(checkpoint) == stamp else None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without links
        shutil.copyfile(source, target)


def open_store(config: Config, overwrite: bool, world: World, say: Say) -> RunStore | None:
    """The run's store, if it has one, and in the run's folder on every machine what it has saved last, anywhere.

    A run that is finished here, but not there, is uploaded.
    """
    store = RunStore.find(config)
    if store is None:
        return None

    def synchronise() -> None:
        run = RunFolder(Path(config.run.out) / config.run.name)
        if world.is_main:
            if run.is_finished and not overwrite and not store.is_finished:
                check_same_config(run, config)
                with _build(store, run, config, say):
                    pass
            find_run(config, overwrite)
            store.check(overwrite)
        if not overwrite and world.local_rank == 0:
            store.bring_up_to_date(run, config, say)
        if not overwrite and world.is_main and world.size > 1:  # other machines have their checkpoints from there
            _build(store, run, config, say).catch_up()

    world.main_first(synchronise)
    world.sum_facts([0.0])
    return store


def uploading(
    store: RunStore | None, run: RunFolder, config: Config, world: World, say: Say
) -> AbstractContextManager[object]:
    """Inside the block the main process uploads the run, if it has a store."""
    return nullcontext() if store is None or not world.is_main else _build(store, run, config, say)


def _build(store: RunStore, run: RunFolder, config: Config, say: Say) -> RunUpload:
    return RunUpload(store, run, Retention(config.training.keep_checkpoints, config.training.keep_every_steps), say)
