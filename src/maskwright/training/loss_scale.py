"""Dynamic loss scaling for fp16 (Micikevicius et al. 2018), decided on the device so that nothing waits."""

from __future__ import annotations

import torch
from torch import Tensor

_START = 2.0**16
_LARGEST = 2.0**24
_GROWTH_INTERVAL = 2000
"""Good steps in a row after which the scale doubles."""


class LossScale:
    """Halves after a step that overflowed, doubles after many that did not."""

    def __init__(self, device: torch.device, values: list[float] | None = None) -> None:
        """`values` are those that `fetch` gave."""
        scale, num_good = values or [_START, 0.0]
        self.scale = torch.tensor(scale, device=device)
        self._num_good = torch.tensor(num_good, device=device)

    def fetch(self) -> list[float]:
        return [float(self.scale), float(self._num_good)]

    def is_lowest(self) -> Tensor:
        """Whether an overflow can no longer be blamed on the scale."""
        return self.scale <= 1.0

    def update(self, skip: Tensor) -> None:
        """`skip` is 1 where the step overflowed, else 0."""
        overflowed = skip > 0
        num_good = torch.where(overflowed, 0.0, self._num_good + 1)
        grows = num_good >= _GROWTH_INTERVAL
        factor = torch.where(overflowed, 0.5, torch.where(grows, 2.0, 1.0))
        self.scale = (self.scale * factor).clamp(1.0, _LARGEST)
        self._num_good = torch.where(grows, 0.0, num_good)
