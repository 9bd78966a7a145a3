"""Muon: momentum whose direction is orthogonalised, for the matrices inside an encoder (Jordan et al. 2024)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import ParamsT

from maskwright.training.distributed.world import World, distribute_like, gather_whole, is_sharded
from maskwright.training.optim.algorithms import resolve_skip, select

# Coefficients of the odd quintic whose repeated application drives singular values towards 1 (Jordan et al. 2024).
_QUINTIC = (3.4445, -4.7750, 2.0315)

_gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""Newer torch calls it by the first name, and warns of the second."""


class Muon(torch.optim.Optimizer):
    """Steps of unit spectral size; a parameter with `num_stacked` n is treated as n matrices on top of each other.

    The iteration runs in bf16 on GPUs and in fp32 on CPUs, many of which have no fast bf16. Sharded matrices are
    gathered for it. The processes of `world`, which must all step with the same gradients, do a share of it each.
    """

    quantities: ClassVar[tuple[str, ...]] = ("momentum_buffer",)

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        num_iterations: int = 5,
        num_stacked: int = 1,
        world: World | None = None,
    ) -> None:
        self._world = world or World()
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "num_iterations": num_iterations,
            "num_stacked": num_stacked,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: None = None, skip: Tensor | None = None) -> None:  # type: ignore[override]
        """Step, unless `skip` (0-dim, on the parameters' device) is 1: then parameters and state keep their values."""
        is_skipped = resolve_skip(skip)
        if is_skipped is True:
            return
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            if not params:
                continue
            directions = [gather_whole(one) for one in self._advance_momentum(params, group["momentum"], is_skipped)]
            updates = orthogonalize(directions, group["num_iterations"], group["num_stacked"], self._world)
            if isinstance(is_skipped, Tensor):
                torch._foreach_mul_(updates, torch.where(is_skipped, 0.0, 1.0))
            if group["weight_decay"]:
                torch._foreach_mul_(params, _compute_shrinkage(group["lr"] * group["weight_decay"], is_skipped))
            by_scale: dict[float, tuple[list[Tensor], list[Tensor]]] = defaultdict(lambda: ([], []))
            for param, update in zip(params, updates, strict=True):
                rows, columns = param.shape[0] // group["num_stacked"], param.shape[1]
                moved, steps = by_scale[max(1.0, rows / columns) ** 0.5]
                moved.append(param)
                steps.append(distribute_like(update, param))
            for scale, (moved, steps) in by_scale.items():
                torch._foreach_add_(moved, steps, alpha=-group["lr"] * scale)

    def _advance_momentum(self, params: list[Tensor], momentum: float, is_skipped: bool | Tensor) -> list[Tensor]:
        """Update the running mean of the gradient; its Nesterov look-ahead is the direction.

        In a skipped step the mean stands in for the gradient, and so does not change.
        """
        for param in params:
            if not self.state[param]:
                self.state[param]["momentum_buffer"] = torch.zeros_like(param)
        buffers = [self.state[param]["momentum_buffer"] for param in params]
        gradients = [
            select(is_skipped, buffer, param.grad)
            for buffer, param in zip(buffers, params, strict=True)
            if param.grad is not None
        ]
        torch._foreach_lerp_(buffers, gradients, 1.0 - momentum)
        if is_sharded(gradients[0]):  # torch 2.11 shards this operation in place only
            directions = [gradient.clone() for gradient in gradients]
            torch._foreach_lerp_(directions, buffers, momentum)
            return directions
        return list(torch._foreach_lerp(gradients, buffers, momentum))


def _compute_shrinkage(decay: float, is_skipped: bool | Tensor) -> float | Tensor:
    """The factor of weight decay; 1 if the step is skipped."""
    if isinstance(is_skipped, Tensor):
        return torch.where(is_skipped, 1.0, 1.0 - decay)
    return 1.0 - decay


def orthogonalize(
    matrices: list[Tensor], num_iterations: int = 5, num_stacked: int = 1, world: World | None = None
) -> list[Tensor]:
    """The approximately nearest (semi-)orthogonal matrix of each; matrices of one shape are batched."""
    by_shape: dict[torch.Size, list[int]] = defaultdict(list)
    for index, matrix in enumerate(matrices):
        by_shape[matrix.shape].append(index)
    results: list[Tensor | None] = [None] * len(matrices)
    for shape, indices in by_shape.items():
        stack = _stack([matrices[index] for index in indices])
        blocks = stack.view(-1, shape[0] // num_stacked, shape[1])
        orthogonal = (
            _newton_schulz_together(blocks, num_iterations, world or World())
            .view(stack.shape)
            .to(matrices[indices[0]].dtype)
        )
        for index, result in zip(indices, orthogonal, strict=True):
            results[index] = result
    return [result for result in results if result is not None]


def _stack(matrices: list[Tensor]) -> Tensor:
    """Stack matrices in the dtype of the iteration."""
    first = matrices[0]
    dtype = torch.bfloat16 if first.is_cuda else torch.float32
    stack = torch.empty((len(matrices), *first.shape), dtype=dtype, device=first.device)
    torch._foreach_copy_(list(stack), matrices)
    return stack


def _newton_schulz_together(blocks: Tensor, num_iterations: int, world: World) -> Tensor:
    if world.size == 1 or len(blocks) == 1:
        return _newton_schulz(blocks, num_iterations)
    return _share_newton_schulz(blocks, num_iterations, world)


def _share_newton_schulz(blocks: Tensor, num_iterations: int, world: World) -> Tensor:
    """Each process iterates on a run of the matrices, and all get all results; the last run may be filled up."""
    share = -(-len(blocks) // world.size)
    mine = blocks[world.rank * share : (world.rank + 1) * share]
    own = blocks.new_zeros(share, *blocks.shape[1:])
    if len(mine):
        own[: len(mine)] = _newton_schulz(mine, num_iterations)
    every = blocks.new_empty(world.size * share, *blocks.shape[1:])
    _gather(every, own)
    return every[: len(blocks)]


def _newton_schulz(x: Tensor, num_iterations: int) -> Tensor:
    """Newton-Schulz iteration on (N, rows, columns), on the smaller side of the product."""
    a, b, c = _QUINTIC
    is_tall = x.shape[1] > x.shape[2]
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(num_iterations):
        gram = x.mT @ x if is_tall else x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, x, polynomial, beta=a) if is_tall else torch.baddbmm(x, polynomial, x, beta=a)
    return x
