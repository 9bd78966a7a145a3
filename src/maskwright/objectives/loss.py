"""The loss as (sum, count): divided once, where the count of the whole batch is known."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maskwright.batch import IGNORED_LABEL
from maskwright.models.compilation import FunctionCompiler

_MOST_LOGITS = 1 << 26
_ALIGNMENT = 64
_SUM_DTYPES = {"mps": torch.float32}
"""Of kinds of devices that have no float64."""


def find_sum_dtype(device: torch.device) -> torch.dtype:
    """The dtype of sums over a run on a device."""
    return _SUM_DTYPES.get(device.type, torch.float64)


def as_sum(tensor: Tensor) -> Tensor:
    """In the dtype of sums."""
    return tensor.to(find_sum_dtype(tensor.device))


@dataclass(frozen=True)
class LossSums:
    """Sums over the tokens of a batch; they can be added for any split of the data.

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

    With a `capacity`, M is that number for any batch, so shapes are static and nothing synchronises with the device:
    empty slots carry the ignored label, and labelled tokens beyond the capacity are left out.
    """
    flat_labels = labels.flatten()
    is_labelled = flat_labels != IGNORED_LABEL
    if capacity is None:
        index = torch.nonzero(is_labelled).flatten()
        slot_labels = flat_labels[index]
        if hidden.device.type == "cpu" and hidden.dtype == torch.bfloat16:
            # oneDNN prepares its products for every number of rows
            num_empty = -len(index) % _ALIGNMENT
            index, slot_labels = F.pad(index, (0, num_empty)), F.pad(slot_labels, (0, num_empty), value=IGNORED_LABEL)
        return hidden.flatten(0, 1).index_select(0, index), slot_labels
    slot = is_labelled.cumsum(0) - 1
    slot = torch.where(is_labelled & (slot < capacity), slot, capacity)
    tokens = torch.arange(len(flat_labels), device=labels.device)
    index = torch.zeros(capacity + 1, dtype=torch.long, device=labels.device).scatter_(0, slot, tokens)
    slot_labels = torch.full_like(index, IGNORED_LABEL).scatter_(0, slot, flat_labels)
    # Selected rather than indexed: its gradient is added in place, where that of an index is sorted first.
    return hidden.flatten(0, 1).index_select(0, index[:capacity]), slot_labels[:capacity]


def compute_loss_sums(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> LossSums:
    """Cross-entropy of (M, V) logits against (M,) labels, times (M,) weights if given; M may be 0, and empty slots
    weigh nothing.
    """
    logits = logits.float()
    if weights is None:
        loss_sum = F.cross_entropy(logits, labels, reduction="sum", ignore_index=IGNORED_LABEL)
    else:
        loss_sum = (F.cross_entropy(logits, labels, reduction="none", ignore_index=IGNORED_LABEL) * weights).sum()
    with torch.no_grad():
        num_correct = (logits.max(dim=-1).indices == labels).sum()  # argmax takes four times as long on CPUs
    return LossSums.of_tokens(
        loss_sum=loss_sum,
        num_correct=num_correct,
        num_labelled=(labels != IGNORED_LABEL).sum(),
    )


def compute_token_losses(logits: Tensor, labels: Tensor) -> tuple[LossSums, Tensor]:
    """The sums of `compute_loss_sums`, and the loss of each of (M,) labels, 0 where it is ignored."""
    losses = F.cross_entropy(logits.float(), labels, reduction="none", ignore_index=IGNORED_LABEL)
    with torch.no_grad():
        num_correct = (logits.max(dim=-1).indices == labels).sum()
    return LossSums.of_tokens(losses.sum(), (labels != IGNORED_LABEL).sum(), num_correct), losses.detach()


def compute_loss_in_parts(
    features: Tensor,
    weight: Tensor,
    bias: Tensor,
    labels: Tensor,
    compiler: FunctionCompiler,
    weights: Tensor | None = None,
) -> LossSums:
    """The sums of `compute_loss_sums` for logits `features @ weight.T + bias`, which are never in memory at once.

    M masked slots, D width of their features, V vocabulary; `weights` (M,) are those of the slots. The gradient of a
    cross-entropy is known as soon as its logits are, so each part of the slots adds its share of the gradients and
    frees its logits. The vocabulary is filled up with impossible tokens, since GPUs are slow at products of sides like
    30,522.
    """
    dtype = _find_product_dtype(features)
    missing = -len(weight) % _ALIGNMENT
    weight = F.pad(weight.to(dtype), (0, 0, 0, missing))
    bias = F.pad(bias.to(dtype), (0, missing), value=-math.inf)
    is_labelled = (labels != IGNORED_LABEL).float()
    slot_weights = is_labelled if weights is None else is_labelled * weights
    loss_sum, num_correct = _LossInParts.apply(compiler, features.to(dtype), weight, bias, labels, slot_weights)  # type: ignore[no-untyped-call]
    return LossSums.of_tokens(loss_sum, (labels != IGNORED_LABEL).sum(), num_correct)


def _find_product_dtype(features: Tensor) -> torch.dtype:
    kind = features.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else features.dtype


class _LossInParts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        compiler: FunctionCompiler,
        features: Tensor,
        weight: Tensor,
        bias: Tensor,
        labels: Tensor,
        slot_weights: Tensor,
    ) -> tuple[Tensor, Tensor]:
        part_size = _choose_part_size(len(features), len(weight))
        features_grad = torch.empty_like(features)
        weight_grad = torch.zeros_like(weight, dtype=torch.float32)
        bias_grad = torch.zeros_like(bias, dtype=torch.float32)
        loss_sum = torch.zeros((), device=features.device)
        num_correct = torch.zeros((), dtype=torch.long, device=features.device)
        for start in range(0, len(features), part_size):
            slots = slice(start, start + part_size)
            loss, correct, logits_grad, logits_grad_sum = compiler.run(
                _score_part, features[slots], labels[slots], slot_weights[slots], fixed=(weight, bias)
            )
            loss_sum += loss
            num_correct += correct
            torch.mm(logits_grad, weight, out=features_grad[slots])
            weight_grad += logits_grad.mT @ features[slots]
            bias_grad += logits_grad_sum
        ctx.mark_non_differentiable(num_correct)
        ctx.save_for_backward(features_grad, weight_grad, bias_grad)
        return loss_sum, num_correct

    @staticmethod
    def backward(ctx: Any, loss_grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        dtype = ctx.saved_tensors[0].dtype
        features_grad, weight_grad, bias_grad = ((grad * loss_grad).to(dtype) for grad in ctx.saved_tensors)
        return None, features_grad, weight_grad, bias_grad, None, None


def _choose_part_size(num_slots: int, vocab_size: int) -> int:
    """The size of equal parts whose logits fit the memory limit."""
    num_parts = max(1, math.ceil(num_slots * vocab_size / _MOST_LOGITS))
    size = math.ceil(num_slots / num_parts)
    return max(1, size + -size % _ALIGNMENT)


def _score_part(
    features: Tensor, labels: Tensor, slot_weights: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, ...]:
    """The loss, the number of right answers, the gradient of the logits, and the gradient of the bias."""
    logits = F.linear(features, weight, bias).float()
    answers = labels.clamp(min=0)[:, None]
    normalizer = logits.logsumexp(-1, keepdim=True)
    losses = (normalizer - logits.gather(1, answers))[:, 0]
    is_answer = torch.arange(len(weight), device=labels.device) == answers
    gradient = ((logits - normalizer).exp() - is_answer.float()) * slot_weights[:, None]
    return (
        (losses * slot_weights).sum(),
        (logits.argmax(dim=-1) == labels).sum(),
        gradient.to(features.dtype),
        gradient.sum(0),
    )
