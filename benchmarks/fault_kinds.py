"""The ways to break a run. Each breaks one, goes on with the same command, and says how that went."""

from __future__ import annotations

import math
import random
import re
import resource
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from fault_lab import MAX_STEPS, Lab, Trial, last_step, name_run, wait_for_step
from prestarted import run_command

_RANK_EXIT_S = 20.0
"""dead_process_seconds is 4; the rest is for a machine that is busy."""


def break_by_signal(lab: Lab, fault: str, seed: int, number: int) -> Trial:
    """SIGTERM and SIGINT: the step is finished and saved, so that nothing is computed twice."""
    name, generator = name_run(fault, seed), random.Random(seed)
    child = lab.start(name)
    wait_for_step(child, lab.folder / name, generator.randint(1, MAX_STEPS - 12))
    time.sleep(generator.uniform(0, 0.05))
    sent = time.monotonic()
    child.send(number)
    code = child.wait()
    exit_s = time.monotonic() - sent
    said = re.search(r"interrupted at step (\d+), saved as .* the same command", child.text())
    problem = "" if code == 128 + number and said else f"exit code {code}: {child.text()[-300:]}"
    broke_at = int(said.group(1)) if said else 0
    trial = lab.finish(fault, name, seed, broke_at=broke_at, exit_s=exit_s, problem=problem)
    return replace(trial, problem=f"{trial.redone} steps were not saved") if trial.redone else trial


def break_by_kill(lab: Lab, fault: str, seed: int) -> Trial:
    """SIGKILL at any moment: every fifth anywhere in the process's life, the others while it trains and saves."""
    name, generator = name_run(fault, seed), random.Random(seed)
    child = lab.start(name)
    if seed % 5:
        wait_for_step(child, lab.folder / name, 1)
    time.sleep(generator.uniform(0, lab.training_s if seed % 5 else lab.run_s))
    sent = time.monotonic()
    child.send(signal.SIGKILL)
    child.wait()
    exit_s = time.monotonic() - sent
    return lab.finish(fault, name, seed, broke_at=last_step(lab.folder / name), exit_s=exit_s)


def interrupt(lab: Lab, name: str, step: int) -> int:
    """A run that was asked to end in the middle; returns the step it was saved at."""
    child = lab.start(name)
    wait_for_step(child, lab.folder / name, step)
    child.send(signal.SIGTERM)
    child.wait()
    said = re.search(r"interrupted at step (\d+)", child.text())
    if said is None:
        raise RuntimeError(f"the run was not interrupted: {child.text()}")
    return int(said.group(1))


def damage_each_file(lab: Lab, fault: str) -> list[Trial]:
    """Every file of the newest checkpoint in turn, cut in half or with one bit changed."""
    name = name_run(fault, 0)
    broke_at = interrupt(lab, name, 20)
    run, kept = lab.folder / name, lab.folder / f"{name}-kept"
    shutil.copytree(run, kept)
    newest = Path("checkpoints") / f"step-{broke_at}"
    trials = []
    for seed, file in enumerate(sorted(path for path in (kept / newest).rglob("*") if path.is_file())):
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(kept, run)
        damage(run / file.relative_to(kept), fault, seed)
        trial = lab.finish(fault, name, seed, broke_at=broke_at, exit_s=0.0)
        if not trial.redone:
            trial = replace(trial, problem=trial.problem or f"a damaged {file.name} was used")
        trials.append(trial)
    return trials


def damage(file: Path, fault: str, seed: int) -> None:
    data = bytearray(file.read_bytes())
    if fault == "truncated":
        data = data[: len(data) // 2]
    else:
        place = random.Random(seed).randrange(len(data))
        data[place] ^= 1 << random.Random(seed + 1).randrange(8)
    file.write_bytes(data)


def fill_disk(lab: Lab, fault: str, seed: int) -> Trial:
    """No checkpoint can be written any more: the ones before stay, and the run goes on from them when there is room."""
    name = name_run(fault, seed)
    broke_at = interrupt(lab, name, random.Random(seed).randint(4, MAX_STEPS - 12))
    before = sorted(path.name for path in (lab.folder / name / "checkpoints").glob("step-*"))
    begun = time.monotonic()
    child = lab.start(name, "fault_kinds:run_with_file_limit", num_bytes=30_000)
    code = child.wait()
    exit_s = time.monotonic() - begun
    after = sorted(path.name for path in (lab.folder / name / "checkpoints").glob("step-*"))
    problem = "" if before == after else f"checkpoints {before} became {after}"
    if "Traceback" in child.text() or "cannot write" not in child.text():
        problem = f"exit code {code}: {child.text()[-400:]}"
    return lab.finish(fault, name, seed, broke_at=broke_at, exit_s=exit_s, problem=problem)


def run_with_file_limit(words: list[str], num_bytes: int) -> None:
    """What no file system without space would take: files over a size."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # an error like any other instead of the process's end
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))
    run_command(words)


def kill_among_bad_steps(lab: Lab, fault: str, seed: int) -> Trial:
    """Steps without a finite loss are skipped, also by a run that is killed in between."""
    name = name_run(fault, seed)
    child = lab.start(name, "fault_kinds:run_with_bad_steps")
    wait_for_step(child, lab.folder / name, random.Random(seed).randint(4, MAX_STEPS - 12))
    sent = time.monotonic()
    child.send(signal.SIGKILL)
    child.wait()
    return lab.finish(
        fault,
        name,
        seed,
        broke_at=last_step(lab.folder / name),
        exit_s=time.monotonic() - sent,
        target="fault_kinds:run_with_bad_steps",
    )


def run_with_bad_steps(words: list[str]) -> None:
    """Every ninth step has a loss that is not a number."""
    from maskwright.objectives.masked_lm import MaskedLanguageModel
    from maskwright.training.step import TrainStep

    call, loss_sums, current = TrainStep.__call__, MaskedLanguageModel.loss_sums, [0]

    def noting(self: TrainStep, batch: Any, *, step: int, **arguments: Any) -> Any:
        current[0] = step
        return call(self, batch, step=step, **arguments)

    def poisoned(self: MaskedLanguageModel, corrupted: Any) -> Any:
        sums = loss_sums(self, corrupted)
        is_bad = self.training and current[0] % 9 == 5
        return replace(sums, losses=sums.losses * math.nan) if is_bad else sums

    TrainStep.__call__, MaskedLanguageModel.loss_sums = noting, poisoned  # type: ignore[method-assign]
    run_command(words)


def run_out_of_memory(lab: Lab, fault: str, seed: int) -> Trial:
    """Not more than two rows fit; the unbroken run has been told so from the start."""
    name, begun = name_run(fault, seed), time.monotonic()
    child = lab.start(name, "fault_kinds:run_in_little_memory", max_rows=2)
    code = child.wait()
    said = "going on with 32" in child.text()
    problem = "" if code == 0 and said else f"exit code {code}: {child.text()[-400:]}"
    return lab.finish(fault, name, seed, broke_at=0, exit_s=time.monotonic() - begun, problem=problem)


def run_in_little_memory(words: list[str], max_rows: int) -> None:
    import torch

    from maskwright.objectives.masked_lm import MaskedLanguageModel

    loss_sums = MaskedLanguageModel.loss_sums

    def limited(self: MaskedLanguageModel, corrupted: Any) -> Any:
        if self.training and len(corrupted.labels) > max_rows:
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        return loss_sums(self, corrupted)

    MaskedLanguageModel.loss_sums = limited  # type: ignore[method-assign]
    run_command(words)


def lose_a_rank(lab: Lab, fault: str, seed: int, number: int = signal.SIGKILL) -> Trial:
    """One of two processes dies or hangs; the other ends with its name, and one process goes on alone."""
    name = name_run(fault, seed)
    ranks = lab.start_ranks(name)
    wait_for_step(ranks[0], lab.folder / name, random.Random(seed).randint(2, MAX_STEPS - 12))
    sent = time.monotonic()
    ranks[1].send(number)
    code = ranks[0].wait()
    exit_s = time.monotonic() - sent
    ranks[1].send(signal.SIGKILL)
    ranks[1].wait()
    said = ranks[0].text()
    problem = "" if code == 1 and "rank 1 (" in said and "Traceback" not in said else f"exit code {code}: {said[-600:]}"
    if exit_s > _RANK_EXIT_S:
        problem = problem or f"it took {exit_s:.1f} s to notice"
    return lab.finish(fault, name, seed, broke_at=last_step(lab.folder / name), exit_s=exit_s, problem=problem)
