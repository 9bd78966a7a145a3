"""Write checkpoints in the background, one at a time, while training goes on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from maskwright.errors import InputError, RunError
from maskwright.training.checkpoints import Retention, Snapshot, write_snapshot


class CheckpointWriter:
    """A thread for the writing; a failed write is a warning, since training itself is not harmed by it."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._pool = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[Path] | None = None

    def write(
        self,
        folder: Path,
        snapshot: Snapshot,
        retention: Retention | None = None,
        background: bool = False,
    ) -> None:
        """Write at once or in the background; the one before must be finished."""
        if background:
            self._pending = self._pool.submit(write_snapshot, folder, snapshot, retention)
        else:
            write_snapshot(folder, snapshot, retention)

    def check(self) -> None:
        """Report a write that has failed meanwhile."""
        if self._pending is not None and self._pending.done():
            self.finish()

    def finish(self) -> None:
        """Wait until everything is written."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            pending.result()
        except (RunError, InputError, OSError) as error:
            self._warn(f"{error}; training goes on, and the next checkpoint is tried as usual")
