"""NovoGrad: momentum of gradients that are normalised tensor by tensor (Ginsburg et al. 2019, alg. 1)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from maskwright.training.functional import FunctionalOptimizer, Group, State
from maskwright.training.sharding import compute_square_sum


class NovoGrad(FunctionalOptimizer):
    """The second moment is one number per tensor, the mean squared norm of its gradient; it starts with the first."""

    per_element = ("momentum_buffer",)
    per_tensor = ("square_norm", "step")

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        weight_decay: float = 0.0,
        beta1: float = 0.95,
        beta2: float = 0.98,
        epsilon: float = 1e-8,
    ) -> None:
        defaults = {"lr": lr, "weight_decay": weight_decay, "beta1": beta1, "beta2": beta2, "epsilon": epsilon}
        super().__init__(params, defaults)

    def compute_step(self, param: Tensor, grad: Tensor, state: State, group: Group) -> tuple[Tensor, State]:
        beta1, beta2 = group["beta1"], group["beta2"]
        now = compute_square_sum(grad)
        square_norm = torch.where(state["step"] == 0, now, beta2 * state["square_norm"] + (1 - beta2) * now)
        normalized = grad / (square_norm.sqrt() + group["epsilon"]).to(grad.dtype)
        momentum = beta1 * state["momentum_buffer"] + normalized + group["weight_decay"] * param
        new_state = {"momentum_buffer": momentum, "square_norm": square_norm, "step": state["step"] + 1}
        return param - group["lr"] * momentum, new_state
