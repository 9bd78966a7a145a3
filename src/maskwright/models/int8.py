"""Products in int8 on CPUs, by oneDNN's kernels: weights with a scale per output, tokens with a scale each.

A token's scale depends on nothing but itself, so that neither do answers on their batch. Sums are exact in int32:
where a CPU adds products in pairs of 16 bits, weights have a bit less.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

from maskwright.errors import InputError

_LARGEST = 127
_LARGEST_OF_SHORT_SUMS = 64
"""Of weights, so that two products of it and 255 fit in 16 bits."""
_MIDDLE = 128
"""oneDNN multiplies activations without a sign; for signed ones it had no fast kernel (3.12)."""
_SMALLEST_SCALE = 1e-30
"""Of tokens that are all zeros."""


class Int8Linear(nn.Module):
    """Takes the place of an `nn.Linear` for inference; its values come and go in fp32."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach().float()
        scales = weight.abs().amax(dim=1).clamp(min=_SMALLEST_SCALE) / find_largest_weight()
        rows = (weight / scales[:, None]).round().to(torch.int8)
        self.packed = torch.ops.onednn.qlinear_prepack(rows, None)
        self.scales = scales
        self.zero_points = torch.zeros(len(scales), dtype=torch.int64)
        bias = torch.zeros(len(scales)) if linear.bias is None else linear.bias.detach().float()
        self.bias = nn.Parameter(bias.clone(), requires_grad=False)

    def forward(self, features: Tensor) -> Tensor:
        rows = features.reshape(-1, self.in_features)
        steps = rows.abs().amax(dim=1, keepdim=True).clamp_(min=_SMALLEST_SCALE).div_(_LARGEST)
        # the conversion cuts off what is behind the point
        shifted = torch.addcmul(rows.new_full((1, 1), _MIDDLE + 0.5), rows, steps.reciprocal()).to(torch.uint8)
        product = _multiply(shifted, self.packed, self.scales, self.zero_points)
        return torch.addcmul(self.bias, product, steps).view(*features.shape[:-1], self.out_features)


def _multiply(rows: Tensor, packed: Tensor, scales: Tensor, zero_points: Tensor) -> Tensor:
    product: Tensor = torch.ops.onednn.qlinear_pointwise(
        rows, 1.0, _MIDDLE, packed, scales, zero_points, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return product


@cache
def find_largest_weight() -> int:
    """127 where sums are exact; x86 CPUs without VNNI cut off what 16 bits cannot hold. Tried by the largest values."""
    num_factors = 64
    weight = torch.full((1, num_factors), _LARGEST, dtype=torch.int8)
    rows = torch.full((1, num_factors), 2 * _MIDDLE - 1, dtype=torch.uint8)
    packed = torch.ops.onednn.qlinear_prepack(weight, None)
    product = _multiply(rows, packed, torch.ones(1), torch.zeros(1, dtype=torch.int64))
    return _LARGEST if product.item() == num_factors * _LARGEST * (_MIDDLE - 1) else _LARGEST_OF_SHORT_SUMS


def quantize_linears(model: nn.Module) -> None:
    """Put `Int8Linear` in the place of every product of a model."""
    if not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.onednn, "qlinear_pointwise")):
        raise InputError("precision is int8, and this build of torch has no oneDNN kernels for it; use fp32")
    replaced: dict[nn.Linear, Int8Linear] = {}
    for module in list(model.modules()):
        for name, part in module.named_children():
            if isinstance(part, nn.Linear):
                if part not in replaced:
                    replaced[part] = Int8Linear(part)
                setattr(module, name, replaced[part])
    if not replaced:
        raise InputError(f"precision is int8, and {type(model).__name__} has no products of torch.nn.Linear; use fp32")
