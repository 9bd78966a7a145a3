"""The vectors of examples of several texts. B rows, N documents of a row, G texts of an example, D width."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from maskwright.errors import InputError


def group_vectors(vectors: Tensor, size: int) -> Tensor:
    """(B, N, G, D) of (B, N, D): at each document all texts of its example, of length 1."""
    return F.normalize(vectors, dim=-1).unflatten(1, (-1, size)).repeat_interleave(size, dim=1)


def compute_cosines(groups: Tensor) -> Tensor:
    """(..., 1) the cosine of the first two texts of (..., G, D)."""
    return (groups[..., 0, :] * groups[..., 1, :]).sum(-1, keepdim=True)


def refuse_single_texts() -> InputError:
    return InputError(
        "the loss of similarity is one of pairs, not of single texts; train it on batches of a GroupLoader"
    )
