"""Break training in every way we know, go on with the same command, and compare with a run that nothing happened to.

    python benchmarks/faults.py [--trials 30] [--seed 0] [--only WORD] [--json FILE]

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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

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
from fault_surroundings import (
    NotPossibleError,
    begin_twice,
    damage_small_files,
    diverge,
    fill_whole_disk,
    give_hostile_files,
    interrupt_other_verbs,
    lose_a_rank_of_torchrun,
    prepare_twice,
    run_out_of_memory_evaluating,
    use_narrow_terminals,
)
from prestarted import Prestarted

_NUM_FIXED = 3
"""Trials of faults whose moment matters little."""


class Labs:
    """Made when they are first used."""

    def __init__(self, folder: Path, prestarted: Prestarted) -> None:
        self._folder, self._prestarted = folder, prestarted

    def _make(self, name: str, **settings: Any) -> Lab:
        return Lab(self._folder / name, self._prestarted, **settings)

    @cached_property
    def plain(self) -> Lab:
        return self._begun(self._make("plain"))

    @cached_property
    def bad(self) -> Lab:
        lab = self._make("bad")
        lab.run_unbroken("fault_kinds:run_with_bad_steps")
        return lab

    @cached_property
    def roomy(self) -> Lab:
        """Compared with a run that has been told from the start that little fits."""
        lab = self._make("roomy")
        lab.expected = self._begun(self._make("small", micro_batch_tokens=32)).expected
        return lab

    @cached_property
    def shared(self) -> Lab:
        return self._begun(self._make("shared", has_dropout=False, tolerance=1e-4))

    def _begun(self, lab: Lab) -> Lab:
        lab.run_unbroken()
        return lab


def list_faults(labs: Labs, num_trials: int, seed: int) -> dict[str, Callable[[str], Iterable[Trial]]]:
    """Every fault by its name, with what tries it as often as is asked for, or as it makes sense."""

    def often(attempt: Callable[..., Trial], lab: str, *more: Any) -> Callable[[str], Iterable[Trial]]:
        return repeat(attempt, lab, range(seed, seed + num_trials), *more)

    def seldom(attempt: Callable[..., Trial], lab: str, *more: Any) -> Callable[[str], Iterable[Trial]]:
        return repeat(attempt, lab, range(seed, seed + _NUM_FIXED), *more)

    def repeat(attempt: Callable[..., Trial], lab: str, seeds: range, *more: Any) -> Callable[[str], Iterable[Trial]]:
        return lambda fault: (attempt(getattr(labs, lab), fault, number, *more) for number in seeds)

    return {
        "SIGTERM": often(break_by_signal, "plain", signal.SIGTERM),
        "SIGINT": often(break_by_signal, "plain", signal.SIGINT),
        "SIGKILL": often(break_by_kill, "plain"),
        "two owners": often(begin_twice, "plain"),
        "two preparations": often(prepare_twice, "plain"),
        "truncated": lambda fault: damage_each_file(labs.plain, fault),
        "bit flipped": lambda fault: damage_each_file(labs.plain, fault),
        "small files": lambda fault: damage_small_files(labs.plain, fault),
        "hostile files": lambda fault: give_hostile_files(labs.plain, fault),
        "terminals": lambda fault: use_narrow_terminals(labs.plain, fault),
        "other verbs": lambda fault: interrupt_other_verbs(labs.plain, fault),
        "disk full": seldom(fill_disk, "plain"),
        "no byte left": seldom(fill_whole_disk, "plain"),
        "NaN steps": seldom(kill_among_bad_steps, "bad"),
        "divergence": seldom(diverge, "plain"),
        "memory in training": seldom(run_out_of_memory, "roomy"),
        "memory in evaluation": seldom(run_out_of_memory_evaluating, "shared"),
        "dead rank": seldom(lose_a_rank, "shared"),
        "hanging rank": seldom(lose_a_rank, "shared", signal.SIGSTOP),
        "torchrun": seldom(lose_a_rank_of_torchrun, "shared"),
    }


def try_all(faults: dict[str, Callable[[str], Iterable[Trial]]], only: str) -> Iterator[Trial]:
    for fault, attempts in faults.items():
        if only not in fault:
            continue
        try:
            yield from attempts(fault)
        except NotPossibleError as error:
            print(f"{fault}: not tried, {error}", flush=True)
        except TimeoutError as error:  # the rest of its trials are not made, and it counts as a loss
            yield Trial(fault, -1, None, redone=0, exit_s=0.0, problem=str(error))


def print_table(trials: list[Trial]) -> None:
    print(f"\n{'fault':<22}{'trials':>7}{'resumed':>9}{'lost':>6}{'redone':>8}{'equal':>7}{'exit s':>8}")
    for fault in dict.fromkeys(trial.fault for trial in trials):
        own = [trial for trial in trials if trial.fault == fault]
        num_resumed = sum(trial.resumed_step is not None for trial in own)
        num_equal = sum(not trial.problem for trial in own)
        lost = sum(MAX_STEPS for trial in own if trial.problem)
        redone, exit_s = max(trial.redone for trial in own), max(trial.exit_s for trial in own)
        print(f"{fault:<22}{len(own):>7}{num_resumed:>9}{lost:>6}{redone:>8}{num_equal:>7}{exit_s:>8.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=30, help="of each signal, at random moments")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="", metavar="WORD", help="faults with this word in their name")
    arguments = parser.parse_args()
    prestarted = Prestarted()
    trials = []
    with tempfile.TemporaryDirectory() as folder:
        faults = list_faults(Labs(Path(folder), prestarted), arguments.trials, arguments.seed)
        for trial in try_all(faults, arguments.only):
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
