"""Sums of step results: since the last log line, and over the epoch."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from maskwright.training.state import TrainingState, compute_means
from maskwright.training.step import StepResult


class Meter:
    """Adds up step results on the device and fetches them only when asked.

    Steps are added one by one in both sums, so a resumed epoch ends with exactly the sums of an uninterrupted one.
    """

    def __init__(self, state: TrainingState, device: torch.device) -> None:
        self._state = state
        self._sums = torch.tensor([state.log_sums, state.epoch_sums], dtype=torch.float64, device=device)
        self._grad_norm: Tensor | float = 0.0
        self._num_tokens = 0
        self._since = time.monotonic()

    def add(self, result: StepResult, num_tokens: int) -> None:
        self._sums += torch.stack([result.loss_sum.double(), result.num_correct.double(), result.num_labelled.double()])
        self._grad_norm = result.grad_norm
        self._num_tokens += num_tokens
        self._state.num_tokens += num_tokens

    def fetch(self) -> None:
        """Bring the sums into the state."""
        self._state.log_sums, self._state.epoch_sums = self._sums.tolist()

    def collect(self) -> dict[str, float]:
        """Means since the last call."""
        self.fetch()
        metrics = {
            **compute_means(self._state.log_sums),
            "grad_norm": float(self._grad_norm),
            "tokens_per_s": self._num_tokens / max(time.monotonic() - self._since, 1e-9),
        }
        self._sums[0] = 0.0
        self._num_tokens, self._since = 0, time.monotonic()
        return metrics
