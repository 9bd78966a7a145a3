"""The loss of all slots is the same whether their logits are made together or in parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from maskwright.batch import IGNORED_LABEL
from maskwright.models.compilation import FunctionCompiler
from maskwright.objectives import loss
from maskwright.objectives.loss import LossSums, compute_loss_in_parts, compute_loss_sums
from tolerances import assert_rounded, rounding

NUM_SLOTS, WIDTH, VOCAB_SIZE = 300, 12, 70
NUM_TERMS = NUM_SLOTS + WIDTH + VOCAB_SIZE


class Uncompiled(FunctionCompiler):
    def __init__(self) -> None:
        super().__init__()
        self.part_sizes: list[int] = []

    def run(self, function: Callable[..., Any], *inputs: Any, fixed: tuple[Any, ...] = ()) -> Any:
        self.part_sizes.append(len(inputs[0]))
        return function(*inputs, *fixed)


@pytest.fixture
def slots() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features, weight, bias and labels; a tenth of the slots is empty, one label is the last token."""
    torch.manual_seed(0)
    labels = torch.randint(0, VOCAB_SIZE, (NUM_SLOTS,))
    labels[::10] = IGNORED_LABEL
    labels[1] = VOCAB_SIZE - 1
    tensors = torch.randn(NUM_SLOTS, WIDTH), torch.randn(VOCAB_SIZE, WIDTH), torch.randn(VOCAB_SIZE)
    return *(tensor.requires_grad_() for tensor in tensors), labels  # type: ignore[return-value]


def differentiate(score: Callable[..., LossSums], slots: tuple[Tensor, ...]) -> tuple[LossSums, list[Tensor]]:
    *inputs, labels = slots
    sums = score(*inputs, labels)
    return sums, list(torch.autograd.grad(sums.loss_sum * 0.37, inputs))


def score_whole(features: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> LossSums:
    return compute_loss_sums(features @ weight.T + bias, labels)


@pytest.mark.parametrize(
    ("most_logits", "part_sizes"), [(1 << 26, [300]), (12_800, [128, 128, 44]), (1, [64] * 4 + [44])]
)
def test_parts_have_the_loss_and_gradients_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, slots: tuple[Tensor, ...], most_logits: int, part_sizes: list[int]
) -> None:
    monkeypatch.setattr(loss, "_MOST_LOGITS", most_logits)
    compiler = Uncompiled()
    expected, expected_grads = differentiate(score_whole, slots)
    sums, grads = differentiate(lambda *inputs: compute_loss_in_parts(*inputs, compiler), slots)
    assert compiler.part_sizes == part_sizes
    assert sums.num_labelled == expected.num_labelled
    assert sums.num_correct == expected.num_correct
    assert_rounded(sums.loss_sum, expected.loss_sum, NUM_TERMS)
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        assert_rounded(grad, expected_grad, NUM_TERMS)


def test_no_slot_has_no_loss_and_no_gradient(slots: tuple[Tensor, ...]) -> None:
    features, weight, bias, labels = slots
    none = (features[:0].detach().requires_grad_(), weight, bias, labels[:0])
    sums, grads = differentiate(lambda *inputs: compute_loss_in_parts(*inputs, Uncompiled()), none)
    assert sums.loss_sum == 0
    assert sums.num_labelled == 0
    assert not any(grad.any() for grad in grads)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_half_precision_the_gradients_are_near_those_in_fp32(slots: tuple[Tensor, ...], dtype: torch.dtype) -> None:
    _, expected_grads = differentiate(score_whole, slots)
    with torch.autocast("cpu", dtype):
        _, grads = differentiate(lambda *inputs: compute_loss_in_parts(*inputs, Uncompiled()), slots)
    for grad, expected in zip(grads, expected_grads, strict=True):
        assert grad.dtype == torch.float32
        num_roundings = 3  # of features, weights and probabilities
        assert (grad - expected).norm() < rounding(num_roundings, float(expected.norm()), dtype)
