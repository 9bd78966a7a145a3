"""What all processes must agree on before the next step: the time that has passed, and whether to stop."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from maskwright.training.world import World


@dataclass(frozen=True)
class Verdict:
    elapsed_s: float
    """By the main process's clock, since schedules may follow it."""
    stop: bool
    signal: int
    """The signal that asks the run to end, or 0."""


def agree(world: World, elapsed_s: float, stop: bool, received: int) -> Verdict:
    """One process's wish to stop, or the signal it received, is everybody's."""
    if world.size == 1:
        return Verdict(elapsed_s, stop, received)
    elapsed, num_stops, num_terminations, num_interrupts = world.sum_facts(
        [
            elapsed_s if world.is_main else 0.0,
            float(stop),
            float(received == signal.SIGTERM),
            float(received == signal.SIGINT),
        ]
    )
    agreed = signal.SIGTERM if num_terminations else signal.SIGINT if num_interrupts else 0
    return Verdict(elapsed, num_stops > 0, int(agreed))
