"""Sums of step results, since the last log line and over the epoch, and a record of bad steps."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from maskwright.errors import InputError
from maskwright.objectives.loss import as_sum, find_sum_dtype
from maskwright.objectives.objective import Objective
from maskwright.training.held_out import choose_token_loss
from maskwright.training.state import TrainingState
from maskwright.training.step import StepResult

Item = TypeVar("Item")
_NUM_NAMED_SAMPLES = 8


@dataclass(frozen=True)
class StepRecord:
    """The values that the diagnosis of a bad step needs."""

    step: int
    learning_rate: float
    sample_ids: Tensor
    """(B, S), of this process's share of the batch."""


@dataclass(frozen=True)
class BadStep:
    record: StepRecord
    grad_norm: float


class Meter:
    """Adds up step results on the device and fetches them only when asked.

    Steps are added one by one in both sums, so a resumed epoch ends with exactly the sums of an uninterrupted one.
    """

    def __init__(self, model: Objective, state: TrainingState, device: torch.device) -> None:
        self._state = state
        self._device = device
        nothing = [0.0] * model.num_sums
        sums = [state.log_sums or nothing, state.epoch_sums or nothing]
        if any(len(one) != model.num_sums for one in sums):
            raise InputError(
                f"the checkpoint's state.json has sums of {' and '.join(str(len(one)) for one in sums)} figures, the"
                f" model computes {model.num_sums}; it is damaged or of another model: go on from another checkpoint"
            )
        self._sums = torch.tensor(sums, dtype=find_sum_dtype(device), device=device)
        self._compute_metrics = model.compute_metrics
        self._counts = torch.zeros(3, dtype=self._sums.dtype, device=device)
        self._unchecked: list[tuple[StepRecord, Tensor]] = []
        self._grad_norm = 0.0
        self._first_sums: Tensor | None = None
        self._tokens_before = state.num_tokens
        self._since = time.monotonic()
        self._waited_s = 0.0
        self._num_bad = 0
        self.longest_bad_streak = 0
        self.last_bad: BadStep | None = None

    def add(self, result: StepResult, record: StepRecord) -> None:
        if self._state.first_loss is None and self._first_sums is None:
            self._first_sums = result.sums
        self._sums += torch.where(result.skip > 0, 0.0, result.sums)
        self._counts += torch.stack([result.num_tokens, as_sum(result.skip), result.num_overflowing])
        is_bad = result.skip - result.is_scale_overflow
        self._unchecked.append((record, torch.stack([is_bad, result.grad_norm])))

    def time_waits(self, items: Iterable[Item]) -> Iterator[Item]:
        """The same items; the time until each arrives counts as waiting for data."""
        iterator = iter(items)
        while True:
            begun = time.monotonic()
            try:
                item = next(iterator)
            except StopIteration:
                return
            self._waited_s += time.monotonic() - begun
            yield item

    def fetch(self) -> None:
        """Copy sums and counts into the state; the only place that synchronises with the device."""
        state = self._state
        state.log_sums, state.epoch_sums = self._sums.tolist()
        num_tokens, num_skipped, num_overflowing = self._counts.tolist()
        state.num_tokens += int(num_tokens)
        state.num_skipped += int(num_skipped)
        state.num_overflowing += int(num_overflowing)
        self._counts.zero_()
        if self._first_sums is not None:
            loss = choose_token_loss(self._compute_metrics(self._first_sums.tolist()))
            self._state.first_loss = loss if math.isfinite(loss) else None
            self._first_sums = None
        if self._unchecked:
            self._check(torch.stack([facts for _, facts in self._unchecked]).tolist())

    def _check(self, facts: list[tuple[float, float]]) -> None:
        for (record, _), (is_bad, grad_norm) in zip(self._unchecked, facts, strict=True):
            self._state.bad_streak = self._state.bad_streak + 1 if is_bad else 0
            self.longest_bad_streak = max(self.longest_bad_streak, self._state.bad_streak)
            if is_bad:
                self.last_bad = BadStep(record, grad_norm)
                self._num_bad += 1
            self._grad_norm = grad_norm
        self._unchecked.clear()

    def collect(self) -> tuple[dict[str, float], int]:
        """Means since the last call, and how many steps since then were bad."""
        self.fetch()
        seconds = max(time.monotonic() - self._since, 1e-9)
        metrics = {
            **self._compute_metrics(self._state.log_sums),
            "grad_norm": self._grad_norm,
            "tokens_per_s": (self._state.num_tokens - self._tokens_before) / seconds,
            "data_wait": self._waited_s / seconds,
            "skipped_steps": self._state.num_skipped,
        }
        if self._device.type == "cuda":
            metrics["gpu_memory_bytes"] = torch.cuda.max_memory_allocated(self._device)
        if self._state.num_overflowing:
            metrics["overflowing_tokens"] = self._state.num_overflowing
        self._sums[0] = 0.0
        self._tokens_before, self._since, self._waited_s = self._state.num_tokens, time.monotonic(), 0.0
        num_bad, self._num_bad = self._num_bad, 0
        return metrics, num_bad


class WaitWatch:
    """Warns once if a run spends most of its time waiting for data.

    The first log line does not count: the first batch of a run is slow by itself.
    """

    share = 0.5
    waited_s = 10.0
    """Waiting time below this is never reported."""

    def __init__(self) -> None:
        self._begun_s: float | None = None
        self._last_s = self._waited_s = 0.0
        self._has_spoken = False

    def find_slow_share(self, elapsed_s: float, data_wait: float) -> float | None:
        """The share of time lost so far, at the first log line where it should be reported; else None."""
        if self._begun_s is None:
            self._begun_s = self._last_s = elapsed_s
            return None
        self._waited_s += data_wait * (elapsed_s - self._last_s)
        self._last_s = elapsed_s
        share = self._waited_s / max(elapsed_s - self._begun_s, 1e-9)
        if self._has_spoken or self._waited_s < self.waited_s or share < self.share:
            return None
        self._has_spoken = True
        return share


def describe_bad_steps(num_bad: int, last: BadStep) -> str:
    """Why a run stops."""
    samples = torch.unique(last.record.sample_ids)[:_NUM_NAMED_SAMPLES].tolist()
    return (
        f"the loss or gradient was not finite in {num_bad} steps in a row, which were skipped; the last was step"
        f" {last.record.step} (learning rate {last.record.learning_rate:.2e}, gradient norm {last.grad_norm}, samples"
        f" {', '.join(map(str, samples))}, ...)"
    )
