"""Where a run stands: all that, with weights and optimizer state, decides how it goes on."""

from __future__ import annotations

from dataclasses import dataclass, field

from maskwright.training.precision import PrecisionName


@dataclass
class TrainingState:
    """Sums are those of losses, counts and figures that the model computes its metrics from; empty before any step."""

    step: int = 0
    epoch: int = 0
    batch_in_epoch: int = 0
    """Batches of the loader, of which a step may take several."""
    num_batches: int = 0
    num_places: int = 0
    """Tokens and padding, as `batch_tokens` counts."""
    num_tokens: int = 0
    num_skipped: int = 0
    """Steps left out because their loss or gradient was not finite."""
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
    """That of the first step, before anything was learnt."""
    loss_scale: list[float] | None = None
    precision: PrecisionName | None = None

    def begin_epoch(self, epoch: int) -> None:
        self.epoch, self.batch_in_epoch, self.epoch_sums = epoch, 0, []
