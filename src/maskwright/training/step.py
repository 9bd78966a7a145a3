"""One optimizer step from one batch, whatever the number of micro-batches it is worked on in.

The loss is summed over all micro-batches and divided once by the whole batch's masked count, so the gradients are
those of the whole batch exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from maskwright.batch import PackedBatch
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.randomness import Stream, compute_key
from maskwright.training.optimizers import OptimizerSet


@dataclass(frozen=True)
class StepResult:
    """Sums over one batch, left on the device so that nothing waits for them."""

    loss_sum: Tensor
    num_correct: Tensor
    num_labelled: Tensor
    grad_norm: Tensor


@dataclass(frozen=True)
class TrainStep:
    """Corrupts, differentiates, clips and steps."""

    model: MaskedLanguageModel
    optimizers: OptimizerSet
    seed: int
    max_grad_norm: float | None
    micro_batch_tokens: int | None = None

    def __call__(self, batch: PackedBatch, *, step: int, epoch: int, mask_ratio: float) -> StepResult:
        # Dropout draws from the global generator; seeding it by step makes it a function of (seed, step).
        torch.manual_seed(compute_key(self.seed, step, Stream.DROPOUT) >> 1)
        rows = self._micro_batch_rows(batch)
        corrupted = [
            self.model.corrupt(batch.rows(start, start + rows), self.seed, epoch, mask_ratio)
            for start in range(0, batch.num_rows, rows)
        ]
        num_labelled = torch.stack([part.selected.sum() for part in corrupted]).sum()
        divisor = num_labelled.clamp(min=1)
        self.optimizers.zero_grad()
        loss_sum = num_correct = torch.zeros((), device=batch.input_ids.device)
        for part in corrupted:
            sums = self.model.loss_sums(part)
            (sums.loss_sum / divisor).backward()
            loss_sum = loss_sum + sums.loss_sum.detach()
            num_correct = num_correct + sums.num_correct
        grad_norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_grad_norm or float("inf"))
        self.optimizers.step()
        return StepResult(loss_sum, num_correct, num_labelled, grad_norm)

    def _micro_batch_rows(self, batch: PackedBatch) -> int:
        if self.micro_batch_tokens is None:
            return batch.num_rows
        return max(1, self.micro_batch_tokens // batch.input_ids.shape[1])
