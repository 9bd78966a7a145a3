"""One vector for each document of packed rows. B rows, S row length, N documents of a row, D width."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from maskwright.batch import PackedBatch

Pooling = Literal["cls", "mean"]


def pool(hidden: Tensor, batch: PackedBatch, num_documents: int, pooling: Pooling) -> Tensor:
    """(B, N, D): the state of each document's first token, or the mean of all; meaningless where a row has fewer."""
    return _pool_first(hidden, batch, num_documents) if pooling == "cls" else _pool_mean(hidden, batch, num_documents)


def _pool_first(hidden: Tensor, batch: PackedBatch, num_documents: int) -> Tensor:
    is_first = (batch.positions == 0) & ~batch.is_padding
    slots = torch.where(is_first, batch.document_ids, 0)  # slot 0 takes all other tokens and is not read
    tokens = torch.arange(hidden.shape[1], device=hidden.device).expand_as(slots)
    places = torch.zeros(len(slots), num_documents + 1, dtype=torch.long, device=hidden.device)
    places = places.scatter_(1, slots, tokens)[:, 1:]
    return hidden.gather(1, places[..., None].expand(-1, -1, hidden.shape[-1]))


def _pool_mean(hidden: Tensor, batch: PackedBatch, num_documents: int) -> Tensor:
    """As a product, whose order of summation is the same in every run, and in fp32 whatever the precision."""
    numbers = torch.arange(1, num_documents + 1, device=hidden.device)
    belongs = (batch.document_ids[:, None, :] == numbers[:, None]).float()
    states = hidden.float().masked_fill(batch.is_padding[..., None], 0.0)
    with torch.autocast(hidden.device.type, enabled=False):
        return (belongs @ states) / belongs.sum(-1, keepdim=True).clamp(min=1.0)
