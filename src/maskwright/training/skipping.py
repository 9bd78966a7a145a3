"""Steps that are called off by a tensor on the device, so that the host need not wait for the gradients' check."""

from __future__ import annotations

import torch
from torch import Tensor


def resolve_skip(skip: Tensor | None) -> bool | Tensor:
    """Whether to leave a step out: known at once on the CPU, elsewhere a condition to select values by."""
    if skip is None:
        return False
    return bool(skip) if is_on_host(skip) else skip.bool()


def is_on_host(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu"


def select(is_skipped: bool | Tensor, old: Tensor, new: Tensor) -> Tensor:
    """The value after a step: the old one where the step is skipped."""
    if isinstance(is_skipped, Tensor):
        return torch.where(is_skipped, old, new)
    return old if is_skipped else new
