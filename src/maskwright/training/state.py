"""Where a run stands: all that, with weights and optimizer state, decides how it goes on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class TrainingState:
    step: int = 0
    epoch: int = 0
    batch_in_epoch: int = 0
    num_tokens: int = 0
    elapsed_s: float = 0.0
    epoch_loss_sum: float = 0.0
    epoch_num_correct: int = 0
    epoch_num_labelled: int = 0

    def begin_epoch(self, epoch: int) -> None:
        self.epoch, self.batch_in_epoch = epoch, 0
        self.epoch_loss_sum, self.epoch_num_correct, self.epoch_num_labelled = 0.0, 0, 0

    def epoch_metrics(self) -> dict[str, float]:
        """Means over the epoch so far."""
        count = max(self.epoch_num_labelled, 1)
        return {"loss": self.epoch_loss_sum / count, "mlm_accuracy": self.epoch_num_correct / count}
