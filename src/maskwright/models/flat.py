"""Attention among documents of one flat row on a GPU, in inference: FlashAttention with variable lengths.

Nothing is padded, no mask is built and nothing waits for the device. T tokens of the row, H attention heads, K head
size, N documents.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from maskwright.batch import DocumentBounds

_DTYPES = (torch.bfloat16, torch.float16)
_HEAD_MULTIPLE = 8
_LARGEST_HEAD = 256


@dataclass(frozen=True)
class FlatAttention:
    """Takes the place of an attention mask: tokens see their own document."""

    bounds: DocumentBounds
    half_window: int | None = None
    """Tokens see those at most so many places away; None: all."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """(1, H, T, K) of the same"""
        window = -1 if self.half_window is None else self.half_window
        starts, longest = self.bounds.starts, self.bounds.longest
        attended = attend_documents(_flatten(query), _flatten(key), _flatten(value), starts, longest, window)
        return attended.transpose(0, 1)[None]


def _flatten(features: Tensor) -> Tensor:
    """(T, H, K) of (1, H, T, K)"""
    return features[0].transpose(0, 1)


def attend_documents(
    query: Tensor, key: Tensor, value: Tensor, starts: Tensor, longest: Tensor, half_window: int
) -> Tensor:
    """(T, H, K) of the same"""
    if torch.compiler.is_compiling():
        attended: Tensor = _attend_opaquely(query, key, value, starts, longest, half_window)
        return attended
    return _attend(query, key, value, starts, longest, half_window)


def _attend(query: Tensor, key: Tensor, value: Tensor, starts: Tensor, longest: Tensor, half_window: int) -> Tensor:
    most = int(longest)
    window: dict[str, Any] = {}
    if 0 <= half_window < most - 1:
        window = {"window_size_left": half_window, "window_size_right": half_window}
    output: Tensor = torch.ops.aten._flash_attention_forward(
        query, key, value, starts, starts, most, most, 0.0, False, False, **window
    )[0]
    return output


@torch.library.custom_op("maskwright::attend_documents", mutates_args=())
def _attend_opaquely(
    query: Tensor, key: Tensor, value: Tensor, starts: Tensor, longest: Tensor, half_window: int
) -> Tensor:
    """The same for compiled layers, which are compiled once whatever the lengths are."""
    return _attend(query, key, value, starts, longest, half_window)


@_attend_opaquely.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, starts: Tensor, longest: Tensor, half_window: int) -> Tensor:
    return query.new_empty(query.shape)


def supports_flat_rows(device: torch.device, dtype: torch.dtype, head_size: int) -> bool:
    """Whether this device and this torch have the kernel for heads of this size; it is tried once."""
    is_plausible = dtype in _DTYPES and head_size % _HEAD_MULTIPLE == 0 and head_size <= _LARGEST_HEAD
    return device.type == "cuda" and is_plausible and _has_kernel(device, dtype, head_size)


@cache
def _has_kernel(device: torch.device, dtype: torch.dtype, head_size: int) -> bool:
    """Two documents of one token and of two: the first is its own value, and so has to be the result."""
    features = torch.randn(3, 1, head_size, device=device).to(dtype)
    starts = torch.tensor([0, 1, 3], dtype=torch.int32, device=device)
    try:
        attended = _attend(features, features, features, starts, torch.tensor(2, dtype=torch.int32), -1)
    except (RuntimeError, TypeError, AttributeError):  # an older GPU, or a torch built without the kernel
        return False
    return attended.shape == features.shape and torch.equal(attended[0], features[0])
