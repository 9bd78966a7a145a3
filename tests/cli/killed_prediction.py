"""A prediction in small parts, for a process that is killed: at a given sync, or at any time while answers are slow."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from prestarted import run_command

from maskwright.inference import kept_answers
from maskwright.runs import predict


def run_in_parts(words: list[str], part: tuple[int, int], block: int, last_sync: int = 0, pause_s: float = 0.0) -> None:
    """`maskwright` with these words; it dies when it is about to sync a file for the `last_sync`th time."""
    predict._CPU_PART, kept_answers._BLOCK_RECORDS = part, block
    sync, record, count = os.fsync, predict._Work._record, 0

    def count_syncs(descriptor: int) -> None:
        nonlocal count
        count += 1
        if count == last_sync:
            os.kill(os.getpid(), signal.SIGKILL)
        sync(descriptor)

    def record_slowly(*given: Any) -> Any:
        time.sleep(pause_s)
        return record(*given)

    os.fsync = count_syncs
    if pause_s:
        predict._Work._record = record_slowly  # type: ignore[method-assign]
    run_command(words)
