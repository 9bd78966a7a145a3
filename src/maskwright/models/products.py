"""Products of inference on CPUs: a row's result is the same to the bit, whatever other rows come with it.

MKL, which torch takes, chooses its kernel and splits its sums by the number of rows. oneDNN adds up in the same order
for any number from two on (tried for up to 4,096 rows, on one and two threads), and it is faster for few rows.
"""

from __future__ import annotations

import platform

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IS_ROW_INVARIANT = platform.machine().lower() in ("x86_64", "amd64") and torch.backends.mkldnn.is_available()
"""Whether this machine has such a product; elsewhere results may differ by rounding."""
_DTYPES = (torch.float32, torch.bfloat16)


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
