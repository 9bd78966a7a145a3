"""A residual sum and the LayerNorm after it in one pass over memory, for inference on a GPU. T tokens, D width."""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

_ROW_VALUES = 1_024
"""A program takes several short rows."""


@triton.jit
def _normalize_rows(
    left,
    right,
    weight,
    bias,
    output,
    num_rows,
    width,
    eps,
    has_bias: tl.constexpr,
    block: tl.constexpr,
    rows_at_once: tl.constexpr,
):
    rows = tl.program_id(0).to(tl.int64) * rows_at_once + tl.arange(0, rows_at_once)
    columns = tl.arange(0, block)
    is_column = columns < width
    is_there = (rows < num_rows)[:, None] & is_column[None, :]
    places = rows[:, None] * width + columns[None, :]
    added = tl.load(left + places, mask=is_there, other=0.0).to(tl.float32)
    added += tl.load(right + places, mask=is_there, other=0.0).to(tl.float32)
    mean = tl.sum(added, 1) / width
    centred = tl.where(is_there, added - mean[:, None], 0.0)
    spread = tl.rsqrt(tl.sum(centred * centred, 1) / width + eps)
    scale = tl.load(weight + columns, mask=is_column, other=0.0).to(tl.float32)
    normalized = centred * spread[:, None] * scale[None, :]
    if has_bias:
        normalized += tl.load(bias + columns, mask=is_column, other=0.0).to(tl.float32)[None, :]
    tl.store(output + places, normalized.to(output.dtype.element_ty), mask=is_there)


def add_and_normalize(left: Tensor, right: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """LayerNorm of left + right (..., D), in their dtype."""
    width = left.shape[-1]
    left, right = left.contiguous(), right.contiguous()
    output = torch.empty_like(left)
    block = triton.next_power_of_2(width)
    rows_at_once = max(1, _ROW_VALUES // block)
    num_rows = left.numel() // width
    _normalize_rows[(triton.cdiv(num_rows, rows_at_once),)](
        left,
        right,
        weight,
        weight if bias is None else bias,
        output,
        num_rows,
        width,
        eps,
        has_bias=bias is not None,
        block=block,
        rows_at_once=rows_at_once,
        num_warps=4,
    )
    return output


def add_and_normalize_plainly(left: Tensor, right: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """The same for any device."""
    return F.layer_norm(left + right, (left.shape[-1],), weight, bias, eps)
