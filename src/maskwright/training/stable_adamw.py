"""StableAdamW: AdamW whose step shrinks where the squared gradient outruns its mean (Wortsman et al. 2023, alg. 2)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from maskwright.training.functional import FunctionalOptimizer, Group, State, compute_bias_correction
from maskwright.training.sharding import compute_square_sum


class StableAdamW(FunctionalOptimizer):
    """Each tensor's learning rate is divided by the RMS of gradient / sqrt(mean square), where that exceeds 1."""

    per_element = ("exp_avg", "exp_avg_sq")
    per_tensor = ("step",)

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        weight_decay: float = 0.0,
        beta1: float = 0.9,
        beta2: float = 0.98,
        epsilon: float = 1e-6,
    ) -> None:
        defaults = {"lr": lr, "weight_decay": weight_decay, "beta1": beta1, "beta2": beta2, "epsilon": epsilon}
        super().__init__(params, defaults)

    def compute_step(self, param: Tensor, grad: Tensor, state: State, group: Group) -> tuple[Tensor, State]:
        step = state["step"] + 1
        mean = torch.lerp(state["exp_avg"], grad, _compute_share(group["beta1"], step, grad.dtype))
        mean_square = torch.lerp(state["exp_avg_sq"], grad.square(), _compute_share(group["beta2"], step, grad.dtype))
        root = mean_square.sqrt()
        rms = (compute_square_sum(grad / root.clamp(min=group["epsilon"])) / param.numel()).sqrt()
        rate = group["lr"] / rms.clamp(min=1.0)
        update = mean / (root + group["epsilon"]) + group["weight_decay"] * param
        return param - rate * update, {"exp_avg": mean, "exp_avg_sq": mean_square, "step": step}


def _compute_share(beta: float, step: Tensor, dtype: torch.dtype) -> Tensor:
    """What a gradient counts in a running mean that is unbiased at every step: all at the first, 1 - beta in the end.

    The paper's corrected beta, beta (1 - beta^(t-1)) / (1 - beta^t), is 1 minus this.
    """
    return (1 - beta) / compute_bias_correction(beta, step, dtype)
