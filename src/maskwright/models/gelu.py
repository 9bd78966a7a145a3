"""The exact GELU, where torch's own takes longer than it need."""

from __future__ import annotations

import math
import platform
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_HAS_SLOW_GRADIENT = platform.machine() in ("aarch64", "arm64")
_SCALE = 0.3275911 / math.sqrt(2.0)
_COEFFICIENTS = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
"""Of formula 7.1.26 of Abramowitz and Stegun (1964) for the error function, whose error is at most 1.5e-7."""


class GELU(nn.Module):
    """x times the normal distribution's share below x (Hendrycks and Gimpel 2016).

    The error function that math libraries have takes so many instructions that a GPU computes longer than it reads and
    writes; compiled kernels in bf16, which has 8 bits, take a formula that is right to 22. On ARM cores torch's
    gradient takes twelve times as long as its function; the one here takes four times.
    """

    def forward(self, values: Tensor) -> Tensor:
        if torch.compiler.is_compiling() and values.dtype == torch.bfloat16:
            return _ShortGELU.apply(values)  # type: ignore[no-untyped-call]
        if _HAS_SLOW_GRADIENT and _is_plain(values):
            return _GELUOnARM.apply(values)  # type: ignore[no-untyped-call]
        return F.gelu(values)


def _is_plain(values: Tensor) -> bool:
    is_wanted = values.requires_grad and torch.is_grad_enabled() and not torch.compiler.is_compiling()
    return is_wanted and values.device.type == "cpu" and values.dtype == torch.float32


class _GELUOnARM(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.save_for_backward(values)
        return F.gelu(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        share = torch.erf(x * math.sqrt(0.5)).mul_(0.5).add_(0.5)
        density = torch.exp((x * x).mul_(-0.5)).mul_(x).mul_(1.0 / math.sqrt(2.0 * math.pi))
        return share.add_(density).mul_(grad)


class _ShortGELU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.save_for_backward(values)
        x = values.float()
        return (x * compute_share_below(x)[0]).to(values.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (values,) = ctx.saved_tensors
        x = values.float()
        share, bell = compute_share_below(x)
        return (grad.float() * (share + x * bell * (1.0 / math.sqrt(2.0 * math.pi)))).to(grad.dtype)


def compute_share_below(x: Tensor) -> tuple[Tensor, Tensor]:
    """The normal distribution's share below x, and exp(-x * x / 2), which comes with it."""
    bell = torch.exp(-0.5 * x * x)
    t = 1.0 / (1.0 + _SCALE * x.abs())
    polynomial = torch.zeros_like(t)
    for coefficient in _COEFFICIENTS:
        polynomial = (polynomial + coefficient) * t
    tail = 0.5 * polynomial * bell
    return torch.where(x >= 0, 1.0 - tail, tail), bell
