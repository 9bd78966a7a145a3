"""Where a run stands: all that, with weights and optimizer state, decides how it goes on."""

from __future__ import annotations

from dataclasses import dataclass, field


def _no_sums() -> list[float]:
    return [0.0, 0.0, 0.0]


@dataclass
class TrainingState:
    """Sums are loss, right answers and masked tokens."""

    step: int = 0
    epoch: int = 0
    batch_in_epoch: int = 0
    num_tokens: int = 0
    elapsed_s: float = 0.0
    epoch_sums: list[float] = field(default_factory=_no_sums)
    log_sums: list[float] = field(default_factory=_no_sums)
    """Since the last log line."""

    def begin_epoch(self, epoch: int) -> None:
        self.epoch, self.batch_in_epoch, self.epoch_sums = epoch, 0, _no_sums()

    def epoch_metrics(self) -> dict[str, float]:
        return compute_means(self.epoch_sums)


def compute_means(sums: list[float]) -> dict[str, float]:
    loss_sum, num_correct, num_labelled = sums
    count = max(num_labelled, 1.0)
    return {"loss": loss_sum / count, "mlm_accuracy": num_correct / count}
