"""All weight initialisation, in one place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from torch import nn

ResidualInit = Literal["normal", "zero"]


def init_weights(module: nn.Module, initializer_range: float) -> None:
    """BERT's: normal weights, zero biases, unit norms (Devlin et al. 2018, code release)."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=initializer_range)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        elif isinstance(part, nn.Embedding):
            nn.init.normal_(part.weight, std=initializer_range)
            if part.padding_idx is not None:
                nn.init.zeros_(part.weight[part.padding_idx].detach())
        elif isinstance(part, nn.LayerNorm | nn.RMSNorm):
            nn.init.ones_(part.weight)
            if isinstance(part, nn.LayerNorm) and part.bias is not None:
                nn.init.zeros_(part.bias)


def zero_residual_outputs(outputs: Iterable[nn.Linear]) -> None:
    """Let residual branches start as nothing, so that depth does not slow the first steps."""
    for output in outputs:
        nn.init.zeros_(output.weight)
