"""Lion: the sign of a momentum, every weight by the same amount (Chen et al. 2023, alg. 2)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from maskwright.training.functional import FunctionalOptimizer, Group, State


class Lion(FunctionalOptimizer):
    """Wants learning rates 3 to 10 times smaller than AdamW's, and weight decay larger by as much (section 5)."""

    per_element = ("exp_avg",)

    def __init__(
        self, params: ParamsT, lr: float, weight_decay: float = 0.0, beta1: float = 0.9, beta2: float = 0.99
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "beta1": beta1, "beta2": beta2})

    def compute_step(self, param: Tensor, grad: Tensor, state: State, group: Group) -> tuple[Tensor, State]:
        beta1, beta2 = group["beta1"], group["beta2"]
        direction = torch.lerp(state["exp_avg"], grad, 1 - beta1).sign()
        new_param = param - group["lr"] * (direction + group["weight_decay"] * param)
        return new_param, {"exp_avg": torch.lerp(state["exp_avg"], grad, 1 - beta2)}
