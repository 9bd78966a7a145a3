"""Matrix products in fp8, which Hopper GPUs compute twice as fast as bf16.

Values and weights are rounded to e4m3 (3 bits of fraction), gradients to e5m2 (2 bits, a wider range); sums take the
hardware's fast way, with some bits fewer than fp32. The gradients of weights, which are added up over many steps, stay
products in bf16. Scales are fixed powers of two: these formats have exponents of their own, which cover 15 and 30
octaves, so that a scale need only place the window. What lies above it is clipped, and a value that is clipped has no
gradient: with one it would be driven on and on without any effect, and the gradients of weights would grow with it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

_VALUE_SCALE = 1.0
_LARGEST_VALUE = torch.finfo(torch.float8_e4m3fn).max / _VALUE_SCALE
"""448; norms make values about 1, and the largest seen but after gates was 11 (docs/experiments.md, in fp8)."""
_WEIGHT_SCALE = 32.0
"""Weights of up to 14; they are about 0.02 at first, and at most some units after Muon."""
_GRADIENT_SCALE = 2.0**20
"""Gradients of up to 0.05 of a loss that is a mean over a hundred tokens or over ten million."""
_ALIGNMENT = 16


class Scales(NamedTuple):
    """What the products of scaled tensors are multiplied with, on the device they are computed on."""

    values: Tensor
    weights: Tensor
    gradients: Tensor


def build_scales(device: torch.device) -> Scales:
    """Each in memory of its own: the kernels want them aligned."""
    return Scales(
        *(torch.tensor(1.0 / scale, device=device) for scale in (_VALUE_SCALE, _WEIGHT_SCALE, _GRADIENT_SCALE))
    )


def has_fp8(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


def fits_fp8(weight: Tensor) -> bool:
    """Whether the sides of a weight are what the kernels take."""
    return all(side % _ALIGNMENT == 0 for side in weight.shape)


def multiply(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, scales: Scales, *, rounds_values: bool = True
) -> Tensor:
    """`F.linear` of bf16 tensors in fp8; without `rounds_values` only the way back is."""
    rows = hidden.flatten(0, -2)
    product: Tensor = _Product.apply(rows, weight, bias, rounds_values, *scales)  # type: ignore[no-untyped-call]
    return product.view(*hidden.shape[:-1], weight.shape[0])


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, rounds_values: bool, *scales: Tensor
    ) -> Tensor:
        values_scale, weights_scale, gradients_scale = scales
        if rounds_values:
            hidden = hidden.clamp(-_LARGEST_VALUE, _LARGEST_VALUE)
            rounded = (hidden * _VALUE_SCALE).to(torch.float8_e4m3fn)
            product = _multiply_rounded(rounded, _round_weight(weight).t(), values_scale, weights_scale, bias)
        else:
            product = F.linear(hidden, weight, bias)
        ctx.save_for_backward(hidden, weight, weights_scale, gradients_scale)
        ctx.has_bias, ctx.rounds_values = bias is not None, rounds_values
        return product

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, weights_scale, gradients_scale = ctx.saved_tensors
        # This product comes first: it has the compiler write `grad` out, which is then rounded in the same kernel.
        weight_grad = grad.t() @ hidden
        bias_grad = grad.sum(0) if ctx.has_bias else None
        rounded = _round(grad, _GRADIENT_SCALE, torch.float8_e5m2)
        hidden_grad = _multiply_rounded(
            rounded, _round_weight(weight.t().contiguous()).t(), gradients_scale, weights_scale
        )
        if ctx.rounds_values:
            hidden_grad = hidden_grad.masked_fill(hidden.abs() >= _LARGEST_VALUE, 0.0)
        return hidden_grad, weight_grad, bias_grad, None, None, None, None


def _round_weight(weight: Tensor) -> Tensor:
    return _round(weight, _WEIGHT_SCALE, torch.float8_e4m3fn)


def _round(tensor: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    largest = torch.finfo(dtype).max
    return (tensor * scale).clamp(-largest, largest).to(dtype)


def _multiply_rounded(
    left: Tensor, right: Tensor, left_scale: Tensor, right_scale: Tensor, bias: Tensor | None = None
) -> Tensor:
    """The kernels take `left` by rows and `right` by columns."""
    return torch._scaled_mm(
        left, right, left_scale, right_scale, bias=bias, out_dtype=torch.bfloat16, use_fast_accum=True
    )
