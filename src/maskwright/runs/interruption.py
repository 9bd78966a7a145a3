"""SIGTERM and Ctrl-C: finish the step, save, say how to go on, and leave with the code shells expect."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

from maskwright.errors import RunInterruptedError
from maskwright.runs.folder import RunFolder
from maskwright.text.tokenizer import Tokenizer
from maskwright.training.callbacks import Callback
from maskwright.training.checkpoints import Retention

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_PATIENCE_S = 25.0
"""Clusters kill a job about 30 s after they ask it to end."""
_SAME_REQUEST_S = 2.0
"""A cluster signals launcher and processes alike, and the launcher passes it on: that is one request, not two."""


class GracefulStop(Callback):
    """Catches the signals while a run trains; when a step takes too long to end, leaves what is on disk as it is."""

    on_every_rank = True

    def __init__(self, run: RunFolder, tokenizer: Tokenizer, retention: Retention) -> None:
        self.run = run
        self.tokenizer = tokenizer
        self.retention = retention
        self._previous: dict[int, Any] = {}
        self._deadline: threading.Timer | None = None
        self._received_s = 0.0

    def on_train_begin(self) -> None:
        if threading.current_thread() is threading.main_thread():  # the only one that may
            self._previous = {number: signal.signal(number, self._receive) for number in _SIGNALS}

    def on_step_end(self, step: int) -> None:
        number = self.trainer.agreed_signal
        if not number:
            return
        checkpoint = self.trainer.save_checkpoint(self.run.checkpoints, self.tokenizer, self.retention)
        # A launcher that sees one process leave ends the others, which may still be writing.
        self.trainer.finish_writing()
        raise RunInterruptedError(
            f"interrupted at step {step}, saved as {checkpoint}; the same command goes on from there", 128 + number
        )

    def close(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.trainer.received_signal:
            if time.monotonic() - self._received_s > _SAME_REQUEST_S:
                _leave(number, "interrupted twice; the same command goes on from the last checkpoint")
            return
        self.trainer.received_signal = number
        self._received_s = time.monotonic()
        message = "interrupted, and the step did not end in time; the same command goes on from the last checkpoint"
        self._deadline = threading.Timer(_PATIENCE_S, _leave, (number, message))
        self._deadline.daemon = True
        self._deadline.start()


def _leave(number: int, message: str) -> None:
    """At once: the main thread may be inside a computation that does not end."""
    sys.stderr.write(f"error: {message}\n")
    sys.stderr.flush()
    os._exit(128 + number)
