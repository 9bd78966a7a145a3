"""LAMB: Adam's direction, with a step in proportion to the size of each weight matrix (You et al. 2019, alg. 2)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from maskwright.training.functional import FunctionalOptimizer, Group, State, compute_bias_correction
from maskwright.training.sharding import compute_square_sum


class Lamb(FunctionalOptimizer):
    """The update of a matrix is scaled to the matrix's norm; vectors take it as it is, where the paper scales all."""

    per_element = ("exp_avg", "exp_avg_sq")
    per_tensor = ("step",)

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        weight_decay: float = 0.0,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
    ) -> None:
        defaults = {"lr": lr, "weight_decay": weight_decay, "beta1": beta1, "beta2": beta2, "epsilon": epsilon}
        super().__init__(params, defaults)

    def compute_step(self, param: Tensor, grad: Tensor, state: State, group: Group) -> tuple[Tensor, State]:
        beta1, beta2 = group["beta1"], group["beta2"]
        step = state["step"] + 1
        mean = torch.lerp(state["exp_avg"], grad, 1 - beta1)
        mean_square = torch.lerp(state["exp_avg_sq"], grad.square(), 1 - beta2)
        unbiased_mean = mean / compute_bias_correction(beta1, step, grad.dtype)
        unbiased_root = (mean_square / compute_bias_correction(beta2, step, grad.dtype)).sqrt()
        update = unbiased_mean / (unbiased_root + group["epsilon"]) + group["weight_decay"] * param
        rate = group["lr"] * _compute_trust(param, update) if param.ndim > 1 else group["lr"]
        return param - rate * update, {"exp_avg": mean, "exp_avg_sq": mean_square, "step": step}


def _compute_trust(param: Tensor, update: Tensor) -> Tensor:
    """The parameter's norm over the update's; 1 where either is 0."""
    param_norm, update_norm = compute_square_sum(param).sqrt(), compute_square_sum(update).sqrt()
    return torch.where((param_norm > 0) & (update_norm > 0), param_norm / update_norm, 1.0)
