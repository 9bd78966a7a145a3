"""Write checkpoints in the background, and keep what a full disk refuses in memory until there is room."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from maskwright.errors import InputError, RunError
from maskwright.storage import count_free_bytes, describe_room, is_full
from maskwright.training.checkpoint_parts import PartContents, write_in_parts
from maskwright.training.checkpoints import CheckpointContents, Retention, write_checkpoint

Warn = Callable[[str], None]


@dataclass(frozen=True)
class _Job:
    """A checkpoint to write."""

    folder: Path
    contents: CheckpointContents | PartContents
    retention: Retention | None
    notes: list[str]
    """What was removed to make room for it."""

    def write(self) -> Path:
        if isinstance(self.contents, PartContents):
            return write_in_parts(self.folder, self.contents, self.retention, self.notes)
        return write_checkpoint(self.folder, self.contents, self.retention, self.notes)


class CheckpointWriter:
    """A thread for the writing; a failed write is a warning, since training itself is not harmed by it."""

    def __init__(self, warn: Warn) -> None:
        self._warn = warn
        self._pool = ThreadPoolExecutor(1, "checkpoint")
        self._pending: tuple[_Job, Future[Path]] | None = None
        self._failed: _Job | None = None

    def write(
        self,
        folder: Path,
        contents: CheckpointContents | PartContents,
        retention: Retention | None = None,
        background: bool = False,
    ) -> None:
        """Write now or in the background; the previous write must be finished."""
        job = _Job(folder, contents, retention, [])
        if background:
            self._pending = job, self._pool.submit(job.write)
        else:
            try:
                job.write()
            finally:
                self._tell(job)

    def check(self) -> None:
        """Report a background write that has failed."""
        if self._pending is not None and self._pending[1].done():
            self.finish()

    def finish(self) -> None:
        """Wait until all writes are finished."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        job, future = pending
        error = future.exception()
        self._tell(job)
        if isinstance(error, RunError | InputError | OSError):
            if isinstance(job.contents, CheckpointContents):  # a part of one process alone is nothing to try again
                self._failed = job
            self._warn(f"{error}; training goes on, and the next checkpoint is tried as usual")
        elif error is not None:
            raise error

    def forget_failed(self) -> None:
        """Free a checkpoint that could not be written, before the next one is copied."""
        self._failed = None

    def retry(self) -> None:
        """Write the newest checkpoint if writing it failed before; raises the error if it fails again."""
        if self._failed is not None:
            try:
                self._failed.write()
            finally:
                self._tell(self._failed)
            self._failed = None

    def _tell(self, job: _Job) -> None:
        while job.notes:
            self._warn(job.notes.pop(0))


@dataclass(frozen=True)
class _Late:
    write: Callable[[], None]
    num_bytes: int
    error: OSError


class LateWrites:
    """Files beside the checkpoints: what a disk refuses stays in memory and is tried again when there is room."""

    def __init__(self, warn: Warn) -> None:
        self._warn = warn
        self._waiting: dict[Path, _Late] = {}

    def write(self, path: Path, write: Callable[[], None], num_bytes: int) -> None:
        """Call `write` now, and again later if it fails; `write` must also do what earlier calls left undone."""
        if not self._attempt(path, write, num_bytes):
            return
        self._warn(
            f"cannot write {path}: {self._waiting[path].error.strerror}; {describe_room(path, num_bytes)}; what it"
            " should hold stays in memory and is written when there is room, training goes on"
        )

    def retry(self) -> None:
        """Retry all failed writes."""
        for path, late in list(self._waiting.items()):
            if not is_full(late.error) or count_free_bytes(path) >= late.num_bytes:
                self._attempt(path, late.write, late.num_bytes)

    @property
    def num_bytes(self) -> int:
        """The room that all of it takes."""
        return sum(late.num_bytes for late in self._waiting.values())

    def check(self, path: Path | None = None) -> None:
        """Raise the error that keeps this file, or any file, from being written."""
        for waiting, late in self._waiting.items():
            if path in (None, waiting):
                raise late.error

    def _attempt(self, path: Path, write: Callable[[], None], num_bytes: int) -> bool:
        """Try to write; True if this is the first failure since the last success."""
        try:
            write()
        except OSError as error:
            is_new = path not in self._waiting
            self._waiting[path] = _Late(write, num_bytes, error)
            return is_new
        self._waiting.pop(path, None)
        return False
