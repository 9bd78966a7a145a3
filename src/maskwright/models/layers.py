"""Small layers that encoders are made of. B rows, S row length, D width."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskwright.models import fp8
from maskwright.models.gelu import GELU

NormalizationType = Literal["layer_norm", "rms_norm"]
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "gelu": GELU,
    "gelu_new": lambda: nn.GELU(approximate="tanh"),  # type: ignore[dict-item]
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}


class LayerNorm(nn.LayerNorm):
    """Answers in the numbers of its input, also under autocast, where torch's own would answer in fp32."""

    def forward(self, hidden: Tensor) -> Tensor:
        weight, bias = (None if param is None else param.to(hidden.dtype) for param in (self.weight, self.bias))
        with torch.autocast(hidden.device.type, enabled=False):
            return F.layer_norm(hidden, self.normalized_shape, weight, bias, self.eps)


class RMSNorm(nn.RMSNorm):
    """Answers in the numbers of its input, also under autocast."""

    def forward(self, hidden: Tensor) -> Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            return F.rms_norm(hidden, self.normalized_shape, self.weight.to(hidden.dtype), self.eps)


def build_norm(normalization_type: NormalizationType, width: int, eps: float) -> nn.Module:
    return RMSNorm(width, eps=eps) if normalization_type == "rms_norm" else LayerNorm(width, eps=eps)


def build_activation(name: str) -> nn.Module:
    return ACTIVATIONS[name]()


class Linear(nn.Linear):
    """A product of an encoder's layer, in fp8 where that is switched on and the layer runs compiled."""

    fp8_scales: fp8.Scales | None = None
    rounds_values: ClassVar = True

    def forward(self, hidden: Tensor) -> Tensor:
        if self.fp8_scales is not None and torch.compiler.is_compiling():
            return fp8.multiply(hidden, self.weight, self.bias, self.fp8_scales, rounds_values=self.rounds_values)
        return super().forward(hidden)


class LinearAfterGate(Linear):
    """Its values are products themselves, some of them too large for fp8, which would clip them: they stay in bf16."""

    rounds_values: ClassVar = False


def multiply_in_fp8(model: nn.Module, device: torch.device) -> bool:
    """Have compiled layers multiply in fp8; whether the model has any that can."""
    products = [part for part in model.modules() if isinstance(part, Linear) and fp8.fits_fp8(part.weight)]
    scales = fp8.build_scales(device)
    for product in products:
        product.fp8_scales = scales
    return bool(products)


class StackedLinear(Linear):
    """Several projections of one input computed as one product; optimizers may treat each block on its own."""

    def __init__(self, in_features: int, out_features: int, num_stacked: int, bias: bool = True) -> None:
        super().__init__(in_features, num_stacked * out_features, bias=bias)
        self.num_stacked = num_stacked


class StochasticDepth(nn.Module):
    """Skips a residual branch for whole rows during training (Huang et al. 2016), scaled to keep its expectation."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, branch: Tensor) -> Tensor:
        if not self.training or self.rate == 0.0:
            return branch
        kept = torch.rand(branch.shape[0], 1, 1, device=branch.device) >= self.rate
        return branch * kept.to(branch.dtype) / (1.0 - self.rate)
