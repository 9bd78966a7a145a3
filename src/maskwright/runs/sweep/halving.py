"""Successive halving: many trials are trained for a small share of the budget, the best of them further.

Trials pause and go on exactly, so the last ones are whole runs, equal to runs without a pause.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_MOST_ROUNDS = 3
"""Earlier losses say little about whole runs."""


@dataclass(frozen=True)
class Round:
    share: float
    """Of the budget of a run, at which its trials are compared."""
    num_trials: int


def plan_rounds(num_trials: int, keep_one_of: int) -> list[Round]:
    """Each round trains one of so many trials of the last one, for so many times as long; 1 trains all to the end."""
    if keep_one_of == 1 or num_trials < keep_one_of:
        return [Round(1.0, num_trials)]
    num_rounds = min(_MOST_ROUNDS, 1 + int(math.log(num_trials) / math.log(keep_one_of) + 1e-9))
    rounds, left = [], num_trials
    for number in range(num_rounds):
        rounds.append(Round(keep_one_of ** (number - num_rounds + 1.0), left))
        left = math.ceil(left / keep_one_of)
    return rounds


def count_whole_runs(rounds: Sequence[Round]) -> float:
    """The cost of all rounds, in runs of the whole budget."""
    before = 0.0
    total = 0.0
    for one in rounds:
        total += one.num_trials * (one.share - before)
        before = one.share
    return total


def keep_best(losses: Mapping[int, float | None], count: int) -> list[int]:
    """The numbers of so many trials with the lowest losses, in their order; failed ones, of loss None, never."""
    ranked = sorted((loss, number) for number, loss in losses.items() if loss is not None)
    return sorted(number for _, number in ranked[:count])
