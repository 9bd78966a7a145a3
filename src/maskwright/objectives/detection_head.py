"""Tell replaced tokens from original ones: ELECTRA's head (Clark et al. 2020). B rows, S row length, D width."""

from __future__ import annotations

from torch import Tensor, nn

from maskwright.models.encoder import PackedEncoder
from maskwright.models.init import init_weights
from maskwright.models.layers import build_activation


class DetectionOutput(dict[str, Tensor]):
    @property
    def logits(self) -> Tensor:
        """(B, S), positive where a token looks replaced."""
        return self["logits"]


class DetectionHead(nn.Module):
    """One logit (...) for each of the hidden states (..., D), positive where the token looks replaced."""

    def __init__(self, encoder: PackedEncoder, initializer_range: float) -> None:
        super().__init__()
        self.dense = nn.Linear(encoder.hidden_size, encoder.hidden_size, bias=encoder.mlm_head_bias)
        self.activation = build_activation(encoder.activation)
        self.output = nn.Linear(encoder.hidden_size, 1)
        init_weights(self, initializer_range)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.output(self.activation(self.dense(hidden))).squeeze(-1)
