"""Break training in every way we know, go on with the same command, and compare with a run that nothing happened to.

    python benchmarks/faults.py [--trials 30] [--seed 0] [--json FILE]

A trial ends with the weights, optimizer state, metrics (but for timing) and figures of the unbroken run, bit for bit,
or it is lost; the exit code is 1 if any is. A run that changed from two processes to one is compared within 1e-4,
since floating-point sums depend on their order. "redone" is the most steps that a trial computed twice.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from fault_kinds import (
    break_by_kill,
    break_by_signal,
    damage_each_file,
    fill_disk,
    kill_among_bad_steps,
    lose_a_rank,
    run_out_of_memory,
)
from fault_lab import MAX_STEPS, Lab, Trial
from prestarted import Prestarted

_NUM_FIXED = 3
"""Trials of faults whose moment matters little."""


def try_all(folder: Path, prestarted: Prestarted, num_trials: int, seed: int) -> Iterator[Trial]:
    random_seeds, fixed_seeds = range(seed, seed + num_trials), range(seed, seed + _NUM_FIXED)
    plain = Lab(folder / "plain", prestarted)
    plain.run_unbroken()
    for number in random_seeds:
        yield break_by_signal(plain, "SIGTERM", number, signal.SIGTERM)
        yield break_by_signal(plain, "SIGINT", number, signal.SIGINT)
        yield break_by_kill(plain, "SIGKILL", number)
    yield from damage_each_file(plain, "truncated")
    yield from damage_each_file(plain, "bit flipped")
    for number in fixed_seeds:
        yield fill_disk(plain, "disk full", number)
    bad = Lab(folder / "bad", prestarted)
    bad.run_unbroken("fault_kinds:run_with_bad_steps")
    for number in fixed_seeds:
        yield kill_among_bad_steps(bad, "NaN steps", number)
    small = Lab(folder / "small", prestarted, micro_batch_tokens=32)
    small.run_unbroken()
    roomy = Lab(folder / "roomy", prestarted)
    roomy.expected = small.expected
    for number in fixed_seeds:
        yield run_out_of_memory(roomy, "out of memory", number)
    shared = Lab(folder / "shared", prestarted, has_dropout=False, tolerance=1e-4)
    shared.run_unbroken()
    for number in fixed_seeds:
        yield lose_a_rank(shared, "dead rank", number)
        yield lose_a_rank(shared, "hanging rank", number, signal.SIGSTOP)


def print_table(trials: list[Trial]) -> None:
    print(f"\n{'fault':<14}{'trials':>7}{'resumed':>9}{'lost':>6}{'redone':>8}{'equal':>7}{'exit s':>8}")
    for fault in dict.fromkeys(trial.fault for trial in trials):
        own = [trial for trial in trials if trial.fault == fault]
        num_resumed = sum(trial.resumed_step is not None for trial in own)
        num_equal = sum(not trial.problem for trial in own)
        lost = sum(MAX_STEPS for trial in own if trial.problem)
        redone, exit_s = max(trial.redone for trial in own), max(trial.exit_s for trial in own)
        print(f"{fault:<14}{len(own):>7}{num_resumed:>9}{lost:>6}{redone:>8}{num_equal:>7}{exit_s:>8.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=30, help="of each signal, at random moments")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    prestarted = Prestarted()
    trials = []
    with tempfile.TemporaryDirectory() as folder:
        for trial in try_all(Path(folder), prestarted, arguments.trials, arguments.seed):
            trials.append(trial)
            verdict = trial.problem or "the same"
            print(f"{trial.fault} seed {trial.seed}: resumed from {trial.resumed_step}, {verdict}", flush=True)
    prestarted.close()
    print_table(trials)
    num_lost = sum(bool(trial.problem) for trial in trials)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(trial) for trial in trials], indent=2) + "\n")
    print(f"losses {num_lost}")
    sys.exit(1 if num_lost else 0)


if __name__ == "__main__":
    main()
