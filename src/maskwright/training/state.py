"""The state of a run, its progress and its budget, and the history of its metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from maskwright.errors import InputError
from maskwright.sections.training import TrainingConfig
from maskwright.training.compute.precision import PrecisionName


@dataclass
class TrainingState:
    """Everything beside weights and optimizer state that a resumed run needs.

    Sums of losses, counts and figures, from which the model computes its metrics, are empty before the first step.
    """

    step: int = 0
    epoch: int = 0
    batch_in_epoch: int = 0
    """Batches of the loader, of which a step may take several."""
    num_batches: int = 0
    num_places: int = 0
    """Tokens and padding, as `batch_tokens` counts."""
    num_tokens: int = 0
    num_skipped: int = 0
    """Steps skipped because their loss or gradient was not finite."""
    num_overflowing: int = 0
    """Masked tokens that found no slot in the prediction head."""
    bad_streak: int = 0
    """Skipped steps in a row, up to the last one."""
    elapsed_s: float = 0.0
    epoch_sums: list[float] = field(default_factory=list)
    log_sums: list[float] = field(default_factory=list)
    """Since the last log line."""
    best_step: int | None = None
    best_loss: float | None = None
    """Of the best evaluation so far, where the best checkpoint is kept."""
    first_loss: float | None = None
    """The loss of the first step."""
    loss_scale: list[float] | None = None
    precision: PrecisionName | None = None

    def begin_epoch(self, epoch: int) -> None:
        self.epoch, self.batch_in_epoch, self.epoch_sums = epoch, 0, []


class History:
    """What `fit` returns: one value per epoch under each metric's name.

    `history["loss"]`, `["mlm_accuracy"]`, and with validation `["val_loss"]`, `["val_mlm_accuracy"]`.
    """

    def __init__(self, values: Mapping[str, list[float]] | None = None) -> None:
        self.history: dict[str, list[float]] = {name: list(series) for name, series in (values or {}).items()}

    def append(self, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self.history.setdefault(name, []).append(value)


@dataclass(frozen=True)
class Budget:
    """Limits of a run; `expected_batches` is an estimate for its epochs, as packing makes the number vary a little."""

    expected_batches: float = math.inf
    max_steps: int | None = None
    max_tokens: int | None = None
    max_seconds: float | None = None

    def progress(self, state: TrainingState) -> float:
        """The share of the run that is done, by the nearest limit."""
        return min(max(state.num_batches / self.expected_batches, *self._shares(state)), 1.0)

    def is_spent(self, state: TrainingState) -> bool:
        """Whether a limit is reached; epochs are counted by the loop."""
        return max(self._shares(state)) >= 1.0

    def _shares(self, state: TrainingState) -> tuple[float, float, float]:
        return (
            state.step / (self.max_steps or math.inf),
            state.num_places / (self.max_tokens or math.inf),
            state.elapsed_s / (self.max_seconds or math.inf),
        )


def build_budget(batches_per_epoch: int | None, num_epochs: int, config: TrainingConfig) -> Budget:
    """`batches_per_epoch` is None for data without a length."""
    if batches_per_epoch == 0:
        raise InputError("the training data holds no batch")
    limits = (config.max_steps, config.max_tokens, config.max_seconds)
    if batches_per_epoch is None and not any(limits):
        raise InputError("the training data has no length; set training.max_steps or training.max_seconds")
    return Budget(math.inf if batches_per_epoch is None else batches_per_epoch * num_epochs, *limits)


def count_batches_per_step(config: TrainingConfig, progress: float) -> int:
    """How many of the loader's batches make a step; few at first, more as the batch size grows.

    If `batch_tokens_start` is set, the loader's batches have that many tokens.
    """
    if config.batch_tokens_start is None:
        return 1
    final = config.batch_tokens // config.batch_tokens_start
    return min(final, 1 + int(progress / config.batch_ramp_share * final))
