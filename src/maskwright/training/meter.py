"""Sums of step results between two log lines."""

from __future__ import annotations

import time

import torch

from maskwright.training.state import TrainingState
from maskwright.training.step import StepResult


class Meter:
    """Adds up step results on the device and fetches them only when asked."""

    def __init__(self, state: TrainingState) -> None:
        self._state = state
        self._sums: torch.Tensor | None = None
        self._grad_norm = torch.zeros(())
        self._num_tokens = 0
        self._since = time.monotonic()

    def add(self, result: StepResult, num_tokens: int) -> None:
        sums = torch.stack([result.loss_sum.double(), result.num_correct.double(), result.num_labelled.double()])
        self._sums = sums if self._sums is None else self._sums + sums
        self._grad_norm = result.grad_norm
        self._num_tokens += num_tokens
        self._state.num_tokens += num_tokens

    def collect(self) -> dict[str, float]:
        """Means since the last call; their sums go into the epoch's."""
        if self._sums is None:
            return {}
        loss_sum, num_correct, num_labelled = self._sums.tolist()
        self._state.epoch_loss_sum += loss_sum
        self._state.epoch_num_correct += int(num_correct)
        self._state.epoch_num_labelled += int(num_labelled)
        elapsed_s = time.monotonic() - self._since
        metrics = {
            "loss": loss_sum / max(num_labelled, 1.0),
            "mlm_accuracy": num_correct / max(num_labelled, 1.0),
            "grad_norm": float(self._grad_norm),
            "tokens_per_s": self._num_tokens / elapsed_s,
        }
        self._sums, self._num_tokens, self._since = None, 0, time.monotonic()
        return metrics
