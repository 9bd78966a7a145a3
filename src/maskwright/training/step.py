"""One optimizer step from one batch, whatever the number of micro-batches and processes.

The loss is summed over all micro-batches and processes and divided once by the whole batch's masked count, so the
gradients are those of the whole batch exactly. A step whose loss or gradient is not finite changes nothing.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from maskwright.batch import PackedBatch, Questions
from maskwright.objectives.loss import as_sum
from maskwright.randomness import Stream, compute_key, seed_generators
from maskwright.training.compute.compiling import MOST_GRAPHS, GraphedPass
from maskwright.training.compute.parallel import Alone
from maskwright.training.compute.precision import LossScale
from maskwright.training.distributed.world import World, gather_whole
from maskwright.training.micro_batches import MicroBatches
from maskwright.training.optim.average import WeightAverage
from maskwright.training.optim.optimizers import OptimizerSet


@dataclass(frozen=True)
class StepResult:
    """Sums over one batch and all processes, left on the device to avoid synchronisation."""

    sums: Tensor
    """Losses, counts and figures, as the model's `compute_metrics` takes them."""
    num_tokens: Tensor
    num_overflowing: Tensor
    grad_norm: Tensor
    skip: Tensor
    """1 if the step was skipped because its loss or gradient was not finite, else 0."""
    is_scale_overflow: Tensor
    """Whether the cause was fp16's loss scale, which is then halved."""


@dataclass
class TrainStep:
    """Builds questions, computes gradients, clips them and steps the optimizer."""

    placed: Alone
    optimizers: OptimizerSet
    world: World
    seed: int
    max_grad_norm: float | None
    micro_batches: MicroBatches
    loss_scale: LossScale | None = None
    average: WeightAverage | None = None
    is_graphed: bool = False
    """Whether the pass over a batch that is not split is captured as a CUDA graph and replayed."""

    def __post_init__(self) -> None:
        most = MOST_GRAPHS if self.placed.model.varies_in_shape else 1
        params = self.placed.trained.parameters()
        self._graphed = GraphedPass(self._differentiate, params, most) if self.is_graphed else None
        self._most_rows = 0

    def __call__(
        self, batch: PackedBatch, *, step: int, epoch: int, mask_ratio: float | None, progress: float = 0.0
    ) -> StepResult:
        """`batch` is this process's share of the whole one."""
        sums, num_tokens, num_overflowing = self.compute_gradients(
            batch, step=step, epoch=epoch, mask_ratio=mask_ratio, progress=progress
        )
        if self.loss_scale is not None:
            torch._foreach_mul_(self._gradients(), 1.0 / self.loss_scale.scale)
        grad_norm = self._clip()
        is_finite = torch.isfinite(sums).all()
        skip = 1.0 - (torch.isfinite(grad_norm) & is_finite).float()
        self.optimizers.step(skip)
        if self.average is not None:
            self.average.update(skip, step)
        self.placed.model.end_step(step, skip, self.world.sum)
        is_scale_overflow = torch.zeros_like(skip)
        if self.loss_scale is not None:
            is_scale_overflow = skip * is_finite * ~self.loss_scale.is_lowest()
            self.loss_scale.update(skip)
        return StepResult(sums, num_tokens, num_overflowing, grad_norm, skip, is_scale_overflow)

    def compute_gradients(
        self, batch: PackedBatch, *, step: int, epoch: int, mask_ratio: float | None, progress: float = 0.0
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Set the parameters' gradients; returns sums, the number of tokens, and the number of masked tokens without a
        slot.
        """
        self.placed.model.follow(progress)
        # an epoch's last batch is smaller, and not worth kernels and a graph
        if self._graphed is not None and not self.placed.model.varies_in_shape:
            self._most_rows = max(self._most_rows, batch.num_rows)
            batch = batch.fill_up(self._most_rows)

        def ask(part: PackedBatch) -> Questions:
            return self.placed.model.ask(part, self.seed, epoch, mask_ratio, progress)

        return self.micro_batches.run(batch, lambda parts: self._accumulate(parts, [ask(part) for part in parts], step))

    def _accumulate(
        self, parts: list[PackedBatch], questions: list[Questions], step: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of all parts, as `compute_gradients` returns them."""
        # Dropout draws from the global generator; seeding it makes it a function of (seed, step, rank).
        dropout_key = compute_key(compute_key(self.seed, step, Stream.DROPOUT), self.world.rank, Stream.DROPOUT)
        seed_generators(dropout_key >> 1, parts[0].input_ids.device)
        num_tokens = torch.stack([(~part.is_padding).sum() for part in parts]).sum()
        counts = torch.stack([part.counts for part in questions]).sum(0)
        summed = self.world.sum(as_sum(torch.cat([counts, num_tokens[None]])))
        counts, num_tokens = summed.tensor_split([len(counts)])
        factors = self.world.size / counts.float().clamp(min=1)
        if self.loss_scale is not None:
            factors = factors * self.loss_scale.scale
        self.optimizers.zero_grad()
        self.placed.model.begin_step()
        if self._graphed is not None and len(questions) == 1 and not questions[0].batch.is_recomputed:
            totals = [self._graphed(questions[0], factors)]
        else:
            totals = []
            for index, part in enumerate(questions):
                is_last = index == len(questions) - 1
                with nullcontext() if is_last else self.placed.accumulating():
                    totals.append(self._differentiate(part, factors))
        losses, figures, overflowing = self.world.sum(torch.stack(totals).sum(0)).tensor_split([len(counts), -1])
        return torch.cat([losses, counts, figures]), num_tokens[0], overflowing[0]

    def _differentiate(self, part: Questions, factors: Tensor) -> Tensor:
        """Add a part's gradients to the parameters; returns its losses, figures and masked tokens without a slot."""
        sums = self.placed.loss_sums(part)
        self._weigh(sums.losses * factors).backward()
        overflowing = (part.counts - sums.counts).sum()
        return as_sum(torch.cat([sums.losses.detach(), sums.figures, overflowing[None]]))

    def _weigh(self, means: Tensor) -> Tensor:
        """The weighted sum of the loss's parts; weights are Python numbers, as a tensor would be copied to the device
        each time.
        """
        parts = [weight * mean for weight, mean in zip(self.placed.model.part_weights, means, strict=True)]
        return torch.stack(parts).sum()

    def _clip(self) -> Tensor:
        """Clip the gradients' norm; returns the norm before clipping."""
        norm = gather_whole(torch.nn.utils.get_total_norm(self._gradients()))
        if self.max_grad_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(self.placed.trained.parameters(), self.max_grad_norm, norm)
        return norm

    def _gradients(self) -> list[Tensor]:
        return [param.grad for param in self.placed.trained.parameters() if param.grad is not None]
