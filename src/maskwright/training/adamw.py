"""torch's fused AdamW, told by a tensor whether to step."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT


class FusedAdamW(torch.optim.AdamW):
    """The kernel reads the flag by itself, under the names that torch's GradScaler uses."""

    quantities: ClassVar[tuple[str, ...]] = ("step", "exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        weight_decay: float = 0.0,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
    ) -> None:
        super().__init__(params, lr, (beta1, beta2), epsilon, weight_decay, fused=True)

    def step(self, closure: None = None, skip: Tensor | None = None) -> None:  # type: ignore[override]
        """Step, unless `skip` (0-dim, on the parameters' device) is 1: then parameters and state keep their values."""
        self.grad_scale = None
        self.found_inf = skip
        super().step()
