"""Real commands, interrupted, killed and starved; each goes on with the same command as if nothing had happened."""

from __future__ import annotations

import hashlib
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fault_kinds import break_by_kill, break_by_signal, lose_a_rank
from fault_lab import MAX_STEPS, Lab, describe_difference, last_step, read_metrics, read_result, wait_for_step
from prestarted import Prestarted, find_free_port

from tolerances import count_terms, rounding


@pytest.fixture(scope="module")
def shared_lab(prestarted: Prestarted, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    num_terms = MAX_STEPS * 2 * count_terms(num_layers=1, width=16, length=16)
    tolerance = rounding(num_terms, magnitude=math.log(300))  # of losses, which begin near that of 300 equal tokens
    lab = Lab(tmp_path_factory.mktemp("shared"), prestarted, has_dropout=False, tolerance=tolerance)
    lab.run_unbroken()
    return lab


def start_command(launcher: list[str], words: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", *launcher, "maskwright", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )


def wait_until_step(process: subprocess.Popen[str], run: Path, step: int) -> None:
    while process.poll() is None and last_step(run) < step:
        time.sleep(0.01)


def test_sigterm_ends_the_command_with_143_and_it_goes_on(lab: Lab) -> None:
    child = lab.start("asked")
    wait_for_step(child, lab.folder / "asked", 10)
    child.send(signal.SIGTERM)
    code, said = child.wait(60.0), child.text()
    assert code == 143, said
    found = re.search(r"error: interrupted at step (\d+), saved as (.*); the same command goes on from there\n", said)
    assert found is not None, said
    assert Path(found.group(2)) == lab.folder / "asked" / "checkpoints" / f"step-{found.group(1)}"
    trial = lab.finish("SIGTERM", "asked", 0, broke_at=int(found.group(1)), exit_s=0.0)
    assert trial.problem == ""
    assert trial.resumed_step == int(found.group(1))


@pytest.mark.slow  # as SIGTERM above, with another number
def test_ctrl_c_ends_the_command_with_130_and_it_goes_on(lab: Lab) -> None:
    assert break_by_signal(lab, "SIGINT", 1, signal.SIGINT).problem == ""


def test_a_signal_that_comes_twice_at_once_is_one_request(lab: Lab) -> None:
    child = lab.start("twice")
    while child.poll() is None and last_step(lab.folder / "twice") < 5:
        time.sleep(0.005)
    child.send(signal.SIGTERM)
    child.send(signal.SIGTERM)
    assert child.wait() == 143
    assert "interrupted at step" in child.text()


@pytest.mark.slow  # launchers start slowly; the tests below end processes that begin at once
def test_both_processes_of_torchrun_stop_at_the_same_step_and_go_on(shared_lab: Lab) -> None:
    lab = shared_lab
    launcher = ["torch.distributed.run", "--nproc-per-node=2", f"--master-port={find_free_port()}", "-m"]
    words = lab.words("torchrun")
    process = start_command(launcher, words)
    wait_until_step(process, lab.folder / "torchrun", 10)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    found = re.search(r"interrupted at step (\d+), saved as", said)
    assert found is not None, said
    assert said.count("interrupted at step") == 1
    ranks = lab.start_ranks("torchrun")
    assert [rank.wait() for rank in ranks] == [0, 0], ranks[0].text()
    assert f"from step {found.group(1)}" in ranks[0].text()
    assert ranks[1].text() == ""
    run = lab.folder / "torchrun"
    assert describe_difference(read_result(run), lab.expected, lab.tolerance) == ""
    assert len(read_metrics(run)) == len(lab.expected["metrics"]), "one process writes"


def find_rank(launcher: int, rank: int) -> int:
    """The process that torchrun started as this rank."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
            if int(parent) == launcher and f"RANK={rank}".encode() in (process / "environ").read_bytes().split(b"\0"):
                return int(process.name)
        except OSError:  # it ended meanwhile
            continue
    raise LookupError(f"no rank {rank} under {launcher}")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux to tell which process is which")
@pytest.mark.slow
def test_torchrun_starts_a_run_again_of_which_a_process_was_killed(shared_lab: Lab) -> None:
    """Its store outlives the attempt, with the word that a process died."""
    lab = shared_lab
    launcher = ["torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1"]
    process = start_command([*launcher, f"--master-port={find_free_port()}", "-m"], lab.words("again"))
    wait_until_step(process, lab.folder / "again", 10)
    os.kill(find_rank(process.pid, 1), signal.SIGKILL)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert said.count("same command resumes") == 1
    assert re.search(r"resuming .* from step \d+", said), said
    assert describe_difference(read_result(lab.folder / "again"), lab.expected, lab.tolerance) == ""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux to tell which process is which")
@pytest.mark.slow  # the next test loses a process of those that begin at once
@pytest.mark.parametrize("victim", [1, 0])
def test_a_killed_process_of_torchrun_is_named_by_the_other_at_default_settings(shared_lab: Lab, victim: int) -> None:
    lab, name = shared_lab, f"killed{victim}"
    launcher = ["torch.distributed.run", "--nproc-per-node=2", f"--master-port={find_free_port()}", "-m"]
    process = start_command(launcher, [*lab.words(name), "training.dead_process_seconds=60"])
    wait_until_step(process, lab.folder / name, 5)
    pid = find_rank(process.pid, victim)
    os.kill(pid, signal.SIGKILL)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    expected = rf"error: rank {victim} \([^)]*, process {pid}\) died, so .*; the same command resumes"
    assert re.search(expected, said), said
    assert "interrupted" not in said
    ranks = lab.start_ranks(name)
    assert [rank.wait() for rank in ranks] == [0, 0], ranks[0].text()
    assert describe_difference(read_result(lab.folder / name), lab.expected, lab.tolerance) == ""


@pytest.mark.slow  # the loss of the main process is found in the same way
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_process_is_named_and_one_process_goes_on(shared_lab: Lab, number: int) -> None:
    trial = lose_a_rank(shared_lab, f"lost{int(number)}", 1, number)
    assert trial.problem == ""
    assert trial.resumed_step


def test_the_loss_of_the_main_process_ends_the_other(lab: Lab) -> None:
    ranks = lab.start_ranks("headless")
    while ranks[0].poll() is None and last_step(lab.folder / "headless") < 5:
        time.sleep(0.005)
    ranks[0].send(signal.SIGKILL)
    assert ranks[1].wait(20.0) == 1


def test_a_mistake_is_said_once_by_two_processes_which_both_end(lab: Lab) -> None:
    words = [*lab.words("mistake"), "data.train=nowhere.txt"]
    ranks = lab.prestarted.start_ranks("prestarted:run_command", {"words": words}, lab.folder / "mistake", 2)
    codes = [rank.wait(30.0) for rank in ranks]
    assert codes[0] == 2
    assert codes[1] in (1, 2)
    assert ranks[0].text().count("error: ") == 1
    assert "nowhere.txt" in ranks[0].text()
    assert ranks[1].text() == ""


def compute_without_end() -> None:
    """What a signal's handler in Python has to wait for: a single call into C."""
    from maskwright.runs import interruption

    interruption._PATIENCE_S = 0.5
    with interruption.ending_in_order([]):
        sys.stdout.write("begun\n")
        sys.stdout.flush()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)


def test_a_computation_that_does_not_end_is_left_in_time(prestarted: Prestarted, tmp_path: Path) -> None:
    child = prestarted.start("test_signals:compute_without_end", {}, tmp_path / "said")
    while child.poll() is None and "begun" not in child.text():
        time.sleep(0.01)
    child.send(signal.SIGTERM)
    assert child.wait() == 143
    assert "error: interrupted, and the work did not end in time; the same command goes on" in child.text()


@pytest.mark.slow
def test_kills_at_thirty_random_moments_lose_nothing(lab: Lab) -> None:
    seeds = range(100, 130)
    print(f"seeds {seeds}")  # noqa: T201  a failure is repeated with its seed
    trials = [break_by_kill(lab, "SIGKILL", seed) for seed in seeds]
    assert [trial for trial in trials if trial.problem] == []
    assert sum(trial.resumed_step is not None for trial in trials) >= 20, "most kills came before the end"
