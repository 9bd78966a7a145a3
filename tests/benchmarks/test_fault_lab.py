"""Trials of benchmarks/faults.py end also where what they wait for does not come."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import fault_surroundings
import pytest
from fault_lab import wait_for_step


class HangingChild:
    """Runs until it is killed."""

    def __init__(self) -> None:
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code

    def send(self, number: int) -> None:
        self.code = -number

    def text(self) -> str:
        return "the last words"


def write_step(run: Path, step: int) -> None:
    run.joinpath("metrics.jsonl").write_text(json.dumps({"step": step}) + "\n")


def test_a_run_that_hangs_is_killed_and_quoted(tmp_path: Path) -> None:
    child = HangingChild()
    write_step(tmp_path, 3)
    wait_for_step(child, tmp_path, 3, timeout_s=0.05)
    assert child.code is None
    with pytest.raises(TimeoutError, match=r"not at step 4 .* the last words"):
        wait_for_step(child, tmp_path, 4, timeout_s=0.05)
    assert child.code == -signal.SIGKILL


def test_a_launcher_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault_surroundings, "_LAUNCHED_S", 0.1)
    launched = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    with pytest.raises(TimeoutError, match="still running"), fault_surroundings._ending(launched):
        launched.wait()
    assert launched.returncode == -signal.SIGKILL


def test_a_launcher_that_ended_has_no_ranks() -> None:
    launched = subprocess.Popen([sys.executable, "-c", ""])
    launched.wait()
    with pytest.raises(TimeoutError, match="ended before"):
        fault_surroundings._find_rank(launched, rank=0)
