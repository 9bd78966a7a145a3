"""Draw tokens from predicted distributions with one counter-based number each.

M slots, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from maskwright.randomness import random_uint32

_UNIFORM_BITS = 24
"""As many as fp32 holds exactly, so that a number below 1 stays below 1."""


def draw_uniform(key: int, sample_ids: Tensor, positions: Tensor) -> Tensor:
    """Numbers in [0, 1), a function of the key, the sample and the position alone."""
    bits = random_uint32(key, sample_ids, positions) >> (32 - _UNIFORM_BITS)
    return bits.float() * 2.0**-_UNIFORM_BITS


@torch.no_grad()
def sample_tokens(logits: Tensor, uniform: Tensor, temperature: float) -> Tensor:
    """(M,) ids from softmax(logits / temperature) of (M, V) logits by inverting its distribution function.

    The drawn token is the first whose cumulated probability exceeds the (M,) numbers, so one of probability 0 never
    is. Scaling by the last sum, which rounding moves off 1, keeps the search inside the vocabulary.
    """
    cumulated = torch.softmax(logits.float() / temperature, dim=-1).cumsum(dim=-1)
    targets = uniform[:, None] * cumulated[:, -1:]
    return torch.searchsorted(cumulated, targets, right=True).squeeze(1)
