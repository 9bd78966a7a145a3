"""One optimizer step from one batch, whatever the number of micro-batches and processes it is worked on in.

The loss is summed over all micro-batches and processes and divided once by the whole batch's masked count, so the
gradients are those of the whole batch exactly. A step whose loss or gradient is not finite changes nothing.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from maskwright.batch import PackedBatch
from maskwright.randomness import Stream, compute_key
from maskwright.training.average import WeightAverage
from maskwright.training.loss_scale import LossScale
from maskwright.training.micro_batches import MicroBatches
from maskwright.training.optimizers import OptimizerSet
from maskwright.training.parallel import Alone
from maskwright.training.sharding import gather_whole
from maskwright.training.world import World


@dataclass(frozen=True)
class StepResult:
    """Sums over one batch and all processes, left on the device so that nothing waits for them."""

    loss_sum: Tensor
    num_correct: Tensor
    num_labelled: Tensor
    num_tokens: Tensor
    num_overflowing: Tensor
    grad_norm: Tensor
    skip: Tensor
    """1 where the step was left out because its loss or gradient was not finite, else 0."""
    is_scale_overflow: Tensor
    """Whether that was fp16's loss scale being too large, which halving it mends."""


@dataclass
class TrainStep:
    """Corrupts, differentiates, clips and steps."""

    placed: Alone
    optimizers: OptimizerSet
    world: World
    seed: int
    max_grad_norm: float | None
    micro_batches: MicroBatches
    loss_scale: LossScale | None = None
    average: WeightAverage | None = None

    def __call__(self, batch: PackedBatch, *, step: int, epoch: int, mask_ratio: float) -> StepResult:
        """`batch` is this process's share of the whole one."""
        sums = self.micro_batches.run(batch, lambda parts: self._accumulate(parts, step, epoch, mask_ratio))
        loss_sum, num_correct, num_labelled, num_tokens, num_overflowing = sums.unbind()
        if self.loss_scale is not None:
            torch._foreach_mul_(self._gradients(), 1.0 / self.loss_scale.scale)
        grad_norm = self._clip()
        skip = 1.0 - (torch.isfinite(grad_norm) & torch.isfinite(loss_sum)).float()
        self.optimizers.step(skip)
        if self.average is not None:
            self.average.update(skip)
        is_scale_overflow = torch.zeros_like(skip)
        if self.loss_scale is not None:
            is_scale_overflow = skip * torch.isfinite(loss_sum) * ~self.loss_scale.is_lowest()
            self.loss_scale.update(skip)
        return StepResult(
            loss_sum, num_correct, num_labelled, num_tokens, num_overflowing, grad_norm, skip, is_scale_overflow
        )

    def _accumulate(self, parts: list[PackedBatch], step: int, epoch: int, mask_ratio: float) -> Tensor:
        """The gradients of all parts; returns the sums that a `StepResult` begins with."""
        # Dropout draws from the global generator; seeding it makes it a function of (seed, step, rank).
        dropout_key = compute_key(compute_key(self.seed, step, Stream.DROPOUT), self.world.rank, Stream.DROPOUT)
        torch.manual_seed(dropout_key >> 1)
        corrupted = [self.placed.model.corrupt(part, self.seed, epoch, mask_ratio) for part in parts]
        num_selected = torch.stack([part.selected.sum() for part in corrupted]).sum()
        num_tokens = torch.stack([(~part.is_padding).sum() for part in parts]).sum()
        counts = self.world.sum(torch.stack([num_selected, num_tokens]).double())
        factor = self.world.size / counts[0].float().clamp(min=1)
        if self.loss_scale is not None:
            factor = factor * self.loss_scale.scale
        self.optimizers.zero_grad()
        totals = torch.zeros(3, dtype=torch.float64, device=counts.device)
        for index, part in enumerate(corrupted):
            is_last = index == len(corrupted) - 1
            with nullcontext() if is_last else self.placed.accumulating():
                sums = self.placed.loss_sums(part)
                (sums.loss_sum * factor).backward()
            num_overflowing = part.selected.sum() - sums.num_labelled
            totals += torch.stack([sums.loss_sum.detach(), sums.num_correct, num_overflowing]).double()
        loss_sum, num_correct, num_overflowing = self.world.sum(totals).unbind()
        return torch.stack([loss_sum, num_correct, counts[0], counts[1], num_overflowing])

    def _clip(self) -> Tensor:
        """Scale gradients to the largest norm allowed; returns the norm they had."""
        norm = gather_whole(torch.nn.utils.get_total_norm(self._gradients()))
        if self.max_grad_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(self.placed.trained.parameters(), self.max_grad_norm, norm)
        return norm

    def _gradients(self) -> list[Tensor]:
        return [param.grad for param in self.placed.trained.parameters() if param.grad is not None]
