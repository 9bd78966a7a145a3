"""The contrastive loss: the partner of a text is told from the other texts of the batch.

InfoNCE, known as multiple negatives ranking (Henderson et al. 2017, section 4.4; Reimers & Gurevych 2019). R examples,
G texts of an example (two that belong together, perhaps hard negatives of the first), D width, C candidates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Groups:
    """The examples of a batch; texts are known by numbers, the same number for the same text."""

    vectors: Tensor
    """(R, G, D), of length 1."""
    texts: Tensor
    """(R, G)"""
    is_asked: Tensor
    """(R,), whether there is an example whose texts belong together."""


@dataclass(frozen=True)
class _Side:
    """Texts of one side of all examples, with those they belong to; NaN for hard negatives, which belong to none."""

    vectors: Tensor
    texts: Tensor
    partners: Tensor


Score = Callable[[Tensor, Tensor], Tensor]
"""(Q, C) of queries with candidates."""


def _multiply(queries: Tensor, candidates: Tensor) -> Tensor:
    return queries @ candidates.T


def compute_contrastive_losses(
    own: Groups,
    temperature: float,
    *,
    is_symmetric: bool = True,
    false_negative_margin: float | None = None,
    score: Score = _multiply,
) -> tuple[Tensor, Tensor]:
    """(R,) the loss of each example, and whether its first text finds the second before all others.

    Texts of all processes are candidates. What is the same text as one of the two, or belongs to the same text, is no
    negative; nor is, with a margin, what is nearer than the partner by more than that (a cosine). Unless it
    `is_symmetric`, the second text need not find the first. Vectors of a text may have more axes, for a `score` of
    their own.
    """
    slack = None if false_negative_margin is None else false_negative_margin / temperature
    whole, first = gather_groups(own)
    size = own.vectors.shape[1] - 1
    places = torch.arange(len(own.vectors), device=own.vectors.device) + first
    is_candidate = whole.is_asked
    unpaired = torch.full_like(whole.texts[:, 2:], float("nan"))
    seconds = _Side(
        whole.vectors[:, 1:].flatten(0, 1),
        whole.texts[:, 1:].flatten(),
        torch.cat([whole.texts[:, :1], unpaired], dim=1).flatten(),
    )
    firsts = _Side(whole.vectors[:, 0], whole.texts[:, 0], whole.texts[:, 1])
    asking = _Side(own.vectors[:, 0], own.texts[:, 0], own.texts[:, 1])
    answering = _Side(own.vectors[:, 1], own.texts[:, 1], own.texts[:, 0])
    is_second = is_candidate.repeat_interleave(size)
    there, hits = _find_partners(asking, seconds, is_second, places * size, temperature, slack, score)
    if not is_symmetric:
        return there, hits
    back, _ = _find_partners(answering, firsts, is_candidate, places, temperature, slack, score)
    return (there + back) / 2, hits


def _find_partners(
    queries: _Side,
    candidates: _Side,
    is_candidate: Tensor,
    places: Tensor,
    temperature: float,
    slack: float | None,
    score: Score,
) -> tuple[Tensor, Tensor]:
    """(R,) cross-entropy of the candidate at each place, and whether it comes first."""
    logits = score(queries.vectors, candidates.vectors) / temperature
    own, partners = queries.texts[:, None], queries.partners[:, None]
    is_match = (candidates.texts == own) | (candidates.texts == partners) | (candidates.partners == own)
    is_place = torch.arange(len(candidates.texts), device=places.device) == places[:, None]
    is_left_out = is_match | ~is_candidate
    if slack is not None:
        is_left_out |= logits.detach() > logits.detach().gather(1, places[:, None]) + slack
    logits = logits.masked_fill(~is_place & is_left_out, float("-inf"))
    return F.cross_entropy(logits, places, reduction="none"), logits.argmax(dim=-1) == places


def gather_groups(own: Groups) -> tuple[Groups, int]:
    """The examples of all processes, and the index of this process's first; all have equally many."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return own, 0
    texts, is_asked = _collect(own.texts), _collect(own.is_asked.to(own.texts.dtype)) > 0
    vectors = _CollectVectors.apply(own.vectors)  # type: ignore[no-untyped-call]
    return Groups(vectors, texts, is_asked), dist.get_rank() * len(own.texts)


def _collect(tensor: Tensor) -> Tensor:
    tensor = tensor.contiguous()
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)
    return torch.cat(parts)


class _CollectVectors(torch.autograd.Function):
    """Vectors of all processes, whose gradients go back to the process they came from, summed over all losses."""

    @staticmethod
    def forward(context: Any, vectors: Tensor) -> Tensor:
        return _collect(vectors)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        return total.chunk(dist.get_world_size())[dist.get_rank()]
