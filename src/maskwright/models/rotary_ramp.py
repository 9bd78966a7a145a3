"""Rotary bases that grow while a model learns to read longer texts."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RotaryRamp(nn.Module):
    """The bases of global and local layers, from one pair to another over a share of a run, evenly in logarithms."""

    bases: Tensor
    """(2,) on the device, where recorded passes read them anew in every step."""

    def __init__(self, begin: tuple[float, float], end: tuple[float, float], share: float) -> None:
        super().__init__()
        self.begin, self.end, self.share = begin, end, share
        self.register_buffer("bases", torch.tensor(begin), persistent=False)

    def follow(self, progress: float) -> tuple[float, float]:
        """Set the bases of this part of the run, and return them."""
        done = min(1.0, progress / self.share)
        in_global, in_local = (
            end if done == 1 else begin * (end / begin) ** done for begin, end in zip(self.begin, self.end, strict=True)
        )
        self.bases[0].fill_(in_global)
        self.bases[1].fill_(in_local)
        return in_global, in_local
