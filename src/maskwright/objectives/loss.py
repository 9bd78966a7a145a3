"""The loss as (sum, count): divided once, by whoever knows the whole batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from maskwright.batch import IGNORED_LABEL


@dataclass(frozen=True)
class LossSums:
    """Sums over the tokens of some batch; adding them up is exact for any split of the data.

    K parts of the loss, J figures for the metrics.
    """

    losses: Tensor
    """(K,), differentiable."""
    counts: Tensor
    """(K,), the tokens that each part is a sum over."""
    figures: Tensor
    """(J,)"""

    @classmethod
    def of_tokens(cls, loss_sum: Tensor, num_labelled: Tensor, num_correct: Tensor) -> LossSums:
        """One part, with the right answers as its figure."""
        return cls(loss_sum[None], num_labelled[None], num_correct[None])

    @property
    def loss_sum(self) -> Tensor:
        return self.losses[0]

    @property
    def num_labelled(self) -> Tensor:
        return self.counts[0]

    @property
    def num_correct(self) -> Tensor:
        return self.figures[0]


def gather_labelled(hidden: Tensor, labels: Tensor, capacity: int | None = None) -> tuple[Tensor, Tensor]:
    """Hidden states and labels of the labelled tokens alone: (M, D) and (M,), M masked slots.

    With a `capacity` M is that number whatever the batch holds, so shapes are static and nothing waits for the device:
    empty slots carry the ignored label, and labelled tokens beyond the capacity are left out.
    """
    flat_labels = labels.flatten()
    is_labelled = flat_labels != IGNORED_LABEL
    if capacity is None:
        index = torch.nonzero(is_labelled).flatten()
        return hidden.flatten(0, 1).index_select(0, index), flat_labels[index]
    slot = is_labelled.cumsum(0) - 1
    slot = torch.where(is_labelled & (slot < capacity), slot, capacity)
    tokens = torch.arange(len(flat_labels), device=labels.device)
    index = torch.zeros(capacity + 1, dtype=torch.long, device=labels.device).scatter_(0, slot, tokens)
    slot_labels = torch.full_like(index, IGNORED_LABEL).scatter_(0, slot, flat_labels)
    # Selected rather than indexed: its gradient is added in place, where that of an index is sorted first.
    return hidden.flatten(0, 1).index_select(0, index[:capacity]), slot_labels[:capacity]


def compute_loss_sums(logits: Tensor, labels: Tensor) -> LossSums:
    """Cross-entropy of (M, V) logits against (M,) labels; M may be 0, and empty slots weigh nothing."""
    logits = logits.float()
    with torch.no_grad():
        num_correct = (logits.max(dim=-1).indices == labels).sum()  # argmax takes four times as long on CPUs
    return LossSums.of_tokens(
        loss_sum=F.cross_entropy(logits, labels, reduction="sum", ignore_index=IGNORED_LABEL),
        num_correct=num_correct,
        num_labelled=(labels != IGNORED_LABEL).sum(),
    )
