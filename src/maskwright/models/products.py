"""Products of inference on CPUs, by oneDNN's kernels: a row's result does not depend on what other rows come with it.

MKL, which torch takes, chooses its kernel and splits its sums by the number of rows. oneDNN adds up in the same order
for any number from two on (tried for up to 4,096 rows, on one and two threads), and it is faster for few rows. Its
kernel for bf16 on CPUs with AMX does so for short sums alone, so that long ones are cut here. In int8
weights have a scale per output and tokens a scale each, which depends on nothing but themselves; sums are exact: where
a CPU adds products in pairs of 16 bits, weights have a bit less.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from maskwright.errors import InputError

IS_ROW_INVARIANT = platform.machine().lower() in ("x86_64", "amd64") and torch.backends.mkldnn.is_available()
"""Whether this machine has such a product; elsewhere results may differ by rounding."""
_DTYPES = (torch.float32, torch.bfloat16)
_LONGEST_SUM = 480
"""Of products in bf16 that oneDNN's kernel for AMX adds up without a cut: 15 tiles of 32, which its level-1 cache holds
beside the results. Where it cuts longer ones depends on the number of rows (3.12; tried with 1 to 16 threads)."""
_TILE = 32
_KEPT_PARTS = WeakTensorKeyDictionary()
"""What products take of weights, as `_Kept`."""
_LARGEST_INT8 = 127
_LARGEST_OF_SHORT_SUMS = 64
"""Of weights, so that two products of it and 255 fit in 16 bits."""
_MIDDLE_UINT8 = 128
"""oneDNN multiplies activations without a sign; for signed ones it had no fast kernel (3.12)."""
_SMALLEST_SCALE = 1e-30
"""Of tokens that are all zeros."""


@dataclass(frozen=True)
class _Kept:
    is_packed: bool
    state: tuple[int, int] | None = None
    """The place and version of the weight that the parts were made of."""
    parts: Sequence[Tensor] = ()


def pack_weights(model: nn.Module) -> None:
    """Have a model's products in bf16 on a CPU take their weights in oneDNN's own layout, of which they keep a copy.

    The results are the same; otherwise oneDNN rearranges a weight in every product, which takes as long as some rows.
    In fp32 a text gained nothing from it. For models that nobody trains: a change that torch does not count, by way
    of `.data`, would go unseen.
    """
    if IS_ROW_INVARIANT and hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        for part in model.modules():
            if isinstance(part, RowLinear) and part.weight.dtype == torch.bfloat16:
                _KEPT_PARTS[part.weight] = _Kept(is_packed=True)


def multiply_rows(features: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """As `F.linear`"""
    if not _is_taken(features, weight):
        return F.linear(features, weight, bias)
    rows = features.reshape(-1, features.shape[-1])
    if len(rows) == 1:  # of one row oneDNN makes another kind of product
        product = _multiply(rows.expand(2, -1).contiguous(), weight, bias)[:1]
    else:
        product = _multiply(rows, weight, bias)
    return product.view(*features.shape[:-1], -1)


def _multiply(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    length = _choose_length(rows)
    weight_parts = _keep_parts(weight, length)
    if len(weight_parts) == 1:
        return _multiply_whole(rows, weight_parts[0], bias)
    row_parts = _cut(rows, length)
    total = _multiply_whole(row_parts[0], weight_parts[0], bias)
    for part, own_weight in zip(row_parts[1:], weight_parts[1:], strict=True):
        total = torch.ops.mkldnn._linear_pointwise(part, total, own_weight, None, "add")
    return total


def _choose_length(rows: Tensor) -> int:
    """Of the parts of a sum."""
    num_factors = rows.shape[1]
    if num_factors <= _LONGEST_SUM or rows.dtype != torch.bfloat16 or not _has_amx():
        return num_factors
    num_parts = math.ceil(num_factors / _LONGEST_SUM)
    return math.ceil(num_factors / (num_parts * _TILE)) * _TILE


def _cut(tensor: Tensor, length: int) -> list[Tensor]:
    """Parts of columns, each in a place of its own: of parts that lie apart oneDNN has no fast kernel."""
    return [part.contiguous() for part in tensor.split(length, dim=1)]


def _keep_parts(weight: Tensor, length: int) -> Sequence[Tensor]:
    """The parts of a weight, which are kept until it changes; to cut it again takes longer than a few rows' product."""
    is_cut = length < weight.shape[1]
    kept = _KEPT_PARTS.get(weight)
    if kept is None and not is_cut:
        return (weight,)
    if not isinstance(weight, nn.Parameter) or weight.is_inference():
        return _cut(weight, length)
    state = (weight.data_ptr(), weight._version)
    if kept is None or kept.state != state:
        is_packed = kept is not None and kept.is_packed
        parts = _cut(weight.detach(), length)
        parts = [torch.ops.mkldnn._reorder_linear_weight(part) for part in parts] if is_packed else parts
        kept = _KEPT_PARTS[weight] = _Kept(is_packed, state, parts)
    return kept.parts


@cache
def _has_amx() -> bool:
    return torch.cpu._is_amx_tile_supported()


def _multiply_whole(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return product


def _is_taken(features: Tensor, weight: Tensor) -> bool:
    return (
        IS_ROW_INVARIANT
        and not torch.compiler.is_compiling()
        and torch.is_inference_mode_enabled()
        and features.device.type == "cpu"
        and features.dtype == weight.dtype
        and features.dtype in _DTYPES
        and features.numel() > 0
        and not torch.is_autocast_enabled("cpu")
    )


class RowLinear(nn.Linear):
    """As torch's, by `multiply_rows`."""

    def forward(self, features: Tensor) -> Tensor:
        return multiply_rows(features, self.weight, self.bias)


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
        steps = rows.abs().amax(dim=1, keepdim=True).clamp_(min=_SMALLEST_SCALE).div_(_LARGEST_INT8)
        # the conversion cuts off what is behind the point
        shifted = torch.addcmul(rows.new_full((1, 1), _MIDDLE_UINT8 + 0.5), rows, steps.reciprocal()).to(torch.uint8)
        product = _multiply_int8(shifted, self.packed, self.scales, self.zero_points)
        return torch.addcmul(self.bias, product, steps).view(*features.shape[:-1], self.out_features)


def _multiply_int8(rows: Tensor, packed: Tensor, scales: Tensor, zero_points: Tensor) -> Tensor:
    product: Tensor = torch.ops.onednn.qlinear_pointwise(
        rows, 1.0, _MIDDLE_UINT8, packed, scales, zero_points, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return product


@cache
def find_largest_weight() -> int:
    """127 where sums are exact; x86 CPUs without VNNI cut off what 16 bits cannot hold. Tried by the largest values."""
    num_factors = 64
    weight = torch.full((1, num_factors), _LARGEST_INT8, dtype=torch.int8)
    rows = torch.full((1, num_factors), 2 * _MIDDLE_UINT8 - 1, dtype=torch.uint8)
    packed = torch.ops.onednn.qlinear_prepack(weight, None)
    product = _multiply_int8(rows, packed, torch.ones(1), torch.zeros(1, dtype=torch.int64))
    is_exact = product.item() == num_factors * _LARGEST_INT8 * (_MIDDLE_UINT8 - 1)
    return _LARGEST_INT8 if is_exact else _LARGEST_OF_SHORT_SUMS


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
