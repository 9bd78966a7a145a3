"""SIGTERM, Ctrl-C and a failing disk: save what there is, say how to resume, and exit with the code shells expect."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeVar

from maskwright.errors import LostProcessError, RunError, RunInterruptedError, describe_shortage
from maskwright.models.files.model_folder import list_checkpoints
from maskwright.runs.folder import RunFolder
from maskwright.sections.training import TrainingConfig
from maskwright.storage import is_full
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.training.checkpoints import Retention, free_oldest, is_checkpoint
from maskwright.training.distributed.world import describe_missing_process, find_dead_process
from maskwright.training.loop import Callback, Metrics
from maskwright.training.trainer import Trainer

Result = TypeVar("Result")
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_PATIENCE_S = 25.0
"""Clusters kill a job about 30 s after SIGTERM."""
_LOOK_S = 8.0
"""After this long, a process that still hangs checks whether another one has died."""
_SAME_REQUEST_S = 2.0
"""A cluster signals launcher and processes alike, and the launcher passes it on: that is one request, not two."""
_WAIT_FOR_ROOM_S = 300.0
_TRY_EVERY_S = 2.0
"""How long a run at its end waits for free disk space, and how often it checks."""
_ROOM_FOR_MODEL = 1.5
_SMALL_FILE_BYTES = 1 << 16
"""What must be there before the last checkpoint goes: so many times the model's size, and so much for other files."""
_GO_ON = "the same command goes on from the last checkpoint"


class _Signals:
    """Handles signals while it is open. A signal acts at once, unless `hold` is set, which is then called.

    Python runs handlers in the main thread, which may be inside a computation that does not end, or wait for another
    process. So a thread of its own is woken by the signal too, and ends the process when its time is over or the
    signal comes again.
    """

    def __init__(self) -> None:
        self.received = 0
        self.hold: Callable[[int], None] | None = None
        self._previous: dict[int, Any] = {}

    def open(self) -> None:
        if threading.current_thread() is not threading.main_thread():  # the only one that may
            return
        reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._previous_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=_watch, args=(reader,), name="signals", daemon=True).start()
        self._previous = {number: signal.signal(number, self._receive) for number in _SIGNALS}

    def close(self) -> None:
        if not self._previous:
            return
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
        signal.set_wakeup_fd(self._previous_fd)
        self._writer.close()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            return
        self.received = number
        if self.hold is None:
            raise _StopNow
        self.hold(number)


class _Open:
    """The innermost command's, where one runs."""

    signals: _Signals | None = None


class _StopNow(BaseException):
    """Raised by a signal; a BaseException, so that error handlers do not catch it."""


def _watch(reader: socket.socket) -> None:
    """Ends the process some time after the first signal; returns if the connection is closed before."""
    with reader:
        number, begun_s = 0, 0.0
        while True:
            if number:
                reader.settimeout(max(min(begun_s + _PATIENCE_S - time.monotonic(), _LOOK_S), 1e-3))
            try:
                woken = reader.recv(1)
            except TimeoutError:
                missing = describe_missing_process()
                if missing is not None:
                    _leave(1, f"{missing}, so this process ends too; {_GO_ON}")
                if time.monotonic() - begun_s >= _PATIENCE_S:
                    _leave(128 + number, f"interrupted, and the work did not end in time; {_GO_ON}")
                continue
            if not woken:
                return
            if woken[0] not in _SIGNALS:
                continue
            if not number:
                number, begun_s = woken[0], time.monotonic()
            elif time.monotonic() - begun_s > _SAME_REQUEST_S:
                _leave(128 + number, f"interrupted twice; {_GO_ON}")


def _leave(code: int, message: str) -> NoReturn:
    sys.stderr.write(f"error: {message}\n")
    sys.stderr.flush()
    os._exit(code)


@contextmanager
def ending_in_order(folders: Sequence[Path]) -> Iterator[None]:
    """Around a command on run folders: a signal or a failing disk ends it with a sentence that says what is kept.

    A signal acts at once, except inside the training loop, which saves first (`GracefulStop`).
    """
    outer, signals = _Open.signals, _Signals()
    try:
        _Open.signals = signals
        signals.open()
        try:
            yield
        finally:
            signals.hold = _note_only
    except (RunInterruptedError, LostProcessError):
        raise
    except (_StopNow, Exception) as error:
        if signals.received:  # also where it made something else fail, such as the other processes
            lost = find_dead_process()
            if lost is not None:
                raise lost from error
            raise RunInterruptedError(f"interrupted; {_describe_kept(folders)}", 128 + signals.received) from error
        shortage = describe_shortage(error)
        if shortage is not None:
            raise RunError(f"{shortage}; {_describe_kept(folders)}") from error
        if isinstance(error, OSError) and error.errno is not None:
            place = "" if error.filename is None else f": {error.filename}"
            raise RunError(f"{error.strerror}{place}; {_describe_kept(folders)}") from error
        raise
    finally:
        signals.close()
        _Open.signals = outer
    if signals.received:
        raise RunInterruptedError(f"interrupted; {_describe_kept(folders)}", 128 + signals.received)


def _note_only(number: int) -> None:
    """The command has ended, well or not; that it was interrupted is said after that."""


def _describe_kept(folders: Sequence[Path]) -> str:
    kept = []
    for run in map(RunFolder, folders):
        if run.is_finished:
            kept.append(f"{run.path} (finished)")
        else:
            kept += [str(checkpoint) for checkpoint in list_checkpoints(run.checkpoints)[:1]]
    if not kept:
        return "no checkpoint was saved yet, and the same command begins again"
    return f"{', '.join(kept)} is kept, and the same command goes on from there"


class GracefulStop(Callback):
    """Holds signals back while a run trains: the step or evaluation is finished and saved, then the run ends.

    Before a process leaves, all wait for the writing: a launcher that sees one leave ends the others.
    """

    on_every_rank = True

    def __init__(self, run: RunFolder, tokenizer: Tokenizer, retention: Retention) -> None:
        self.run = run
        self.tokenizer = tokenizer
        self.retention = retention
        self._signals: _Signals | None = None

    def on_train_begin(self) -> None:
        self._signals = _Open.signals
        if self._signals is not None:
            self._signals.hold = self._note

    def on_step_end(self, step: int) -> None:
        if self.trainer.agreed_signal:
            self._save()
            self.trainer.finish_writing()
            self._leave(self.trainer.agreed_signal)

    def on_epoch_end(self, epoch: int, metrics: Metrics) -> None:
        if self.trainer.agreed_signal:
            if not self.trainer.stop_training:  # or else the last checkpoint has just been taken
                self._save()
            self.trainer.finish_writing()
            self._leave(self.trainer.agreed_signal)

    def on_train_end(self) -> None:
        """A signal received after the last epoch ends the run here; later signals act at once."""
        self.trainer.finish_writing()
        if self.trainer.agree_on_signal():
            self._leave(self.trainer.agreed_signal)
        self.close()
        if self.trainer.received_signal:  # since the processes agreed
            self._leave(self.trainer.received_signal)

    def close(self) -> None:
        if self._signals is not None:
            self._signals.hold = None

    def _note(self, number: int) -> None:
        self.trainer.received_signal = number

    def _save(self) -> None:
        try:
            self.trainer.save_checkpoint(self.run.checkpoints, self.tokenizer, self.retention)
        except RunError as error:
            self.trainer.warn(str(error))

    def _write_late(self) -> str:
        """On a full disk old checkpoints give way to what waits in memory; what is lost nevertheless, if anything."""
        late, newest = self.trainer.late_writes, self.run.checkpoints / f"step-{self.trainer.state.step}"
        while True:
            late.retry()
            try:
                late.check()
                return ""
            except OSError as error:
                removed = None
                if is_full(error):
                    removed = free_oldest(self.run.checkpoints, self.retention, newest, late.num_bytes)
                if removed is not None:
                    self.trainer.warn(f"the disk is full: {removed} is removed to make room for what waits in memory")
                    continue
                return f"; {error.filename or self.run.path} could not be completed: {error.strerror}"

    def _leave(self, number: int) -> NoReturn:
        step = self.trainer.state.step
        lost = self._write_late() if self.trainer.world.is_main else ""
        checkpoint = self.run.checkpoints / f"step-{step}"
        kept = (
            f", saved as {checkpoint}; the same command goes on from there"
            if is_checkpoint(checkpoint)
            else f"; {_describe_kept([self.run.path])}"
        )
        raise RunInterruptedError(f"interrupted at step {step}{kept}{lost}", 128 + number)


class LastWrites:
    """The files that the main process writes at the end of a run.

    On a full disk old checkpoints are removed first; then it waits a while. The last whole checkpoint is removed only
    for the model: when that is saved, or when nothing else would make room for it.
    """

    def __init__(self, run: RunFolder, trainer: Trainer, training: TrainingConfig, say: Callable[[str], None]) -> None:
        self._run = run
        self._trainer = trainer
        self._retention = Retention(training.keep_checkpoints, training.keep_every_steps)
        self._say = say
        self._is_model_saved = False
        self._end_s: float | None = None

    def keep(self, save_model: Callable[[], None]) -> None:
        """Write the last checkpoint, the model and the metrics; a checkpoint that is too large is given up for the
        model.
        """
        model_bytes = sum(tensor.nbytes for tensor in self._trainer.model.state_dict().values())
        self.write(lambda: self._keep(save_model), int(_ROOM_FOR_MODEL * model_bytes))
        self._is_model_saved = True
        self.write(self._write_late)

    def _keep(self, save_model: Callable[[], None]) -> None:
        try:
            self._trainer.retry_checkpoint()
        except (RunError, OSError) as error:
            try:
                save_model()
            except OSError:
                raise error from error.__cause__
            self._say(f"{error}; the model is saved, so the run goes on to its end")
        else:
            save_model()

    def _write_late(self) -> None:
        self._trainer.late_writes.retry()
        self._trainer.late_writes.check()

    def write(self, write: Callable[[], Result], num_bytes: int = _SMALL_FILE_BYTES) -> Result:
        """Call `write`, with retries; `num_bytes` is about how much space it needs."""
        while True:
            try:
                return write()
            except (OSError, RunError) as error:
                if not is_full(error if isinstance(error, OSError) else error.__cause__):
                    raise
                if not self._make_room(num_bytes, keeps_whole=not self._is_model_saved):
                    self._wait(error, num_bytes)

    def _make_room(self, num_bytes: int, keeps_whole: bool) -> bool:
        folder = self._run.checkpoints
        newest = folder / f"step-{self._trainer.state.step}"
        removed = free_oldest(folder, self._retention, newest, num_bytes, keeps_whole=keeps_whole)
        if removed is not None:
            self._say(f"the disk is full: {removed} is removed to make room for the end of the run")
        return removed is not None

    def _wait(self, error: OSError | RunError, num_bytes: int) -> None:
        """Raises the error when the time is over."""
        now_s = time.monotonic()
        if self._end_s is None:
            self._end_s = now_s + _WAIT_FOR_ROOM_S
            self._say(f"{error}; waiting {_WAIT_FOR_ROOM_S:.0f} s for room")
        if now_s < self._end_s:
            time.sleep(_TRY_EVERY_S)
        elif not self._make_room(num_bytes, keeps_whole=False):
            if isinstance(error, OSError):
                raise error
            raise RunError(f"{error}; {self._describe_lost()}; {_describe_kept([self._run.path])}") from error

    def _describe_lost(self) -> str:
        newest = next(iter(list_checkpoints(self._run.checkpoints)), None)
        first = 1 if newest is None else int(newest.name.removeprefix("step-")) + 1
        step = self._trainer.state.step
        return f"steps {first} to {step} are lost" if first <= step else "no step is lost"
