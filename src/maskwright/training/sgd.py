"""Stochastic gradient descent with momentum, as torch.optim.SGD computes it.

torch's fused version knows no tensors in parts, and starts with an uninitialised momentum when its first step is
skipped; its other versions cannot skip a step at all.
"""

from __future__ import annotations

from torch import Tensor
from torch.optim.optimizer import ParamsT

from maskwright.training.functional import FunctionalOptimizer, Group, State


class Sgd(FunctionalOptimizer):
    """Weight decay is added to the gradient, as is usual for SGD."""

    per_element = ("momentum_buffer",)

    def __init__(self, params: ParamsT, lr: float, weight_decay: float = 0.0, momentum: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    def compute_step(self, param: Tensor, grad: Tensor, state: State, group: Group) -> tuple[Tensor, State]:
        momentum = group["momentum"] * state["momentum_buffer"] + grad + group["weight_decay"] * param
        return param - group["lr"] * momentum, {"momentum_buffer": momentum}
