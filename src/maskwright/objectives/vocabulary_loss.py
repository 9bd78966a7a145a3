"""Cross-entropy over a vocabulary in parts: the logits of all masked slots are never in memory at once.

M masked slots, D width of their features, V vocabulary. The gradient of a cross-entropy is known as soon as its logits
are, so each part of the slots leaves its share of the gradients behind and its logits are forgotten.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maskwright.batch import IGNORED_LABEL
from maskwright.models.compilation import FunctionCompiler
from maskwright.objectives.loss import LossSums

_MOST_LOGITS = 1 << 26
_ALIGNMENT = 64


def compute_loss_in_parts(
    features: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, compiler: FunctionCompiler
) -> LossSums:
    """The sums of `compute_loss_sums` for logits `features @ weight.T + bias`.

    The vocabulary is filled up with impossible tokens, since GPUs are slow at products of sides like 30,522.
    """
    dtype = _find_product_dtype(features)
    missing = -len(weight) % _ALIGNMENT
    weight = F.pad(weight.to(dtype), (0, 0, 0, missing))
    bias = F.pad(bias.to(dtype), (0, missing), value=-math.inf)
    loss_sum, num_correct = _LossInParts.apply(compiler, features.to(dtype), weight, bias, labels)  # type: ignore[no-untyped-call]
    return LossSums.of_tokens(loss_sum, (labels != IGNORED_LABEL).sum(), num_correct)


def _find_product_dtype(features: Tensor) -> torch.dtype:
    kind = features.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else features.dtype


class _LossInParts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, compiler: FunctionCompiler, features: Tensor, weight: Tensor, bias: Tensor, labels: Tensor
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
                _score_part, features[slots], labels[slots], fixed=(weight, bias)
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
        return None, features_grad, weight_grad, bias_grad, None


def _choose_part_size(num_slots: int, vocab_size: int) -> int:
    """Parts of about one size, whose logits are few enough."""
    num_parts = max(1, math.ceil(num_slots * vocab_size / _MOST_LOGITS))
    size = math.ceil(num_slots / num_parts)
    return max(1, size + -size % _ALIGNMENT)


def _score_part(features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    """Loss, right answers, the gradient of the logits, and its sum over the slots, which is the bias's."""
    logits = F.linear(features, weight, bias).float()
    is_labelled = labels != IGNORED_LABEL
    answers = labels.clamp(min=0)[:, None]
    normalizer = logits.logsumexp(-1, keepdim=True)
    losses = (normalizer - logits.gather(1, answers))[:, 0]
    is_answer = torch.arange(len(weight), device=labels.device) == answers
    gradient = ((logits - normalizer).exp() - is_answer.float()) * is_labelled[:, None]
    return (
        (losses * is_labelled).sum(),
        (logits.argmax(dim=-1) == labels).sum(),
        gradient.to(features.dtype),
        gradient.sum(0),
    )
