"""Products in 8 bits against exact ones, on CPUs by the same operations as on GPUs."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import maskwright as mw
from maskwright.errors import InputError
from maskwright.models import fp8
from maskwright.models.layers import Linear, LinearAfterGate, multiply_in_fp8
from maskwright.training.compute.compiling import use_fp8_products
from maskwright.training.engine import Engine

CPU = torch.device("cpu")
ROUNDING = torch.finfo(torch.float8_e4m3fn).eps / math.sqrt(6)
"""Of a product's size: each factor is off by up to eps / 2, evenly spread, and so by eps / sqrt(12) of its size."""
IN_BF16 = 2 * torch.finfo(torch.bfloat16).eps


def draw(*shape: int, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(*shape, generator=generator) * scale).bfloat16().requires_grad_()


def measure_error(found: torch.Tensor, exact: torch.Tensor) -> float:
    difference = (found - exact).detach().float()
    return float(difference.norm() / exact.detach().float().norm())


@pytest.mark.parametrize("has_bias", [True, False])
def test_products_and_gradients_are_those_of_bf16_but_for_rounding(has_bias):
    hidden, weight = draw(2, 24, 64), draw(48, 64, scale=0.02)
    bias = draw(48) if has_bias else None
    grad = draw(2, 24, 48, scale=1e-6).detach()
    inputs = [tensor for tensor in (hidden, weight, bias) if tensor is not None]
    exact = F.linear(hidden, weight, bias)
    found = fp8.multiply(hidden, weight, bias, fp8.build_scales(CPU))
    assert 0 < measure_error(found, exact) < ROUNDING
    exact_grads, found_grads = (torch.autograd.grad(result, inputs, grad) for result in (exact, found))
    assert 0 < measure_error(found_grads[0], exact_grads[0]) < 2 * ROUNDING  # gradients have a bit less
    for ours, theirs in zip(found_grads[1:], exact_grads[1:], strict=True):
        assert measure_error(ours, theirs) < IN_BF16  # of weights and biases


def test_values_that_eight_bits_hold_are_multiplied_exactly():
    hidden = torch.tensor([[0.5, -1.75, 14.0, 0.0] * 4]).bfloat16()
    weight = torch.eye(16).bfloat16() * 0.25
    assert fp8.multiply(hidden, weight, None, fp8.build_scales(CPU)).equal(hidden * 0.25)


def test_what_is_too_large_is_clipped_and_not_driven_further():
    hidden = torch.tensor([[1e4, -1e4] + [2.0] * 14]).bfloat16().requires_grad_()
    weight = torch.eye(16).bfloat16().requires_grad_()
    product = fp8.multiply(hidden, weight, None, fp8.build_scales(CPU))
    clipped = hidden.detach().clamp(-448, 448)
    assert product.equal(clipped)
    grad = torch.full((1, 16), 2.0**-10).bfloat16()
    hidden_grad, weight_grad = torch.autograd.grad(product, (hidden, weight), grad)
    assert hidden_grad[0].tolist() == [0.0, 0.0] + [2.0**-10] * 14
    assert weight_grad.equal(grad.t() @ clipped)


@pytest.mark.parametrize("rounds_values", [True, False])
def test_one_copy_of_the_values_is_kept_for_the_way_back(rounds_values):
    hidden, weight = draw(24, 64), draw(48, 64, scale=0.02)
    shapes: list[torch.Size] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        shapes.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        fp8.multiply(hidden, weight, None, fp8.build_scales(CPU), rounds_values=rounds_values)
    assert shapes.count(hidden.shape) == 1


def test_values_that_are_not_rounded_are_multiplied_as_in_bf16():
    hidden, weight, bias = draw(2, 24, 64, scale=1e4), draw(48, 64, scale=0.02), draw(48)
    exact = F.linear(hidden, weight, bias)
    found = fp8.multiply(hidden, weight, bias, fp8.build_scales(CPU), rounds_values=False)
    assert found.equal(exact)
    grad = draw(2, 24, 48, scale=1e-6).detach()
    exact_grads, found_grads = (torch.autograd.grad(one, (hidden, weight, bias), grad) for one in (exact, found))
    assert 0 < measure_error(found_grads[0], exact_grads[0]) < 2 * ROUNDING
    for ours, theirs in zip(found_grads[1:], exact_grads[1:], strict=True):
        assert measure_error(ours, theirs) < IN_BF16


@pytest.mark.parametrize(("kind", "largest"), [(Linear, 448), (LinearAfterGate, 1e4)])
def test_what_comes_out_of_a_gate_is_not_clipped(kind, largest):
    product = kind(16, 16, bias=False).bfloat16()
    nn.init.eye_(product.weight)
    hidden = torch.full((1, 16), 1e4).bfloat16()
    assert multiply_in_fp8(product, CPU)
    assert torch.compile(product, backend="eager")(hidden).eq(torch.tensor(largest).bfloat16()).all()


def test_gated_layers_keep_what_comes_out_of_their_gate():
    encoder = mw.ModernBERT.from_variant("tiny", vocab_size=64, num_hidden_layers=2)
    assert all(isinstance(layer.down, LinearAfterGate) for layer in encoder.layers)


@pytest.mark.parametrize("num_masked", [100, 10_000, 10_000_000])
def test_gradients_of_small_and_huge_batches_survive(num_masked):
    hidden, weight = draw(1, 32, 64), draw(64, 64, scale=0.02)
    grad = draw(1, 32, 64, scale=0.03 / num_masked).detach()
    exact, found = (
        torch.autograd.grad(product, hidden, grad)[0]
        for product in (F.linear(hidden, weight), fp8.multiply(hidden, weight, None, fp8.build_scales(CPU)))
    )
    assert measure_error(found, exact) < 2 * ROUNDING


def test_layers_are_switched_but_for_odd_sizes_and_eager_runs_stay_exact():
    model = nn.Sequential(Linear(32, 48), Linear(48, 40), nn.Linear(40, 16))
    hidden = torch.randn(4, 32)
    exact = model(hidden)
    assert multiply_in_fp8(model, CPU)
    assert [getattr(part, "fp8_scales", None) is not None for part in model] == [True, False, False]
    assert model(hidden).equal(exact)
    assert not multiply_in_fp8(nn.Sequential(nn.Linear(32, 32)), CPU)


def build_model() -> mw.MaskedLanguageModel:
    encoder = mw.BERT.from_variant("tiny", vocab_size=64, hidden_size=32, num_attention_heads=2, num_hidden_layers=1)
    return mw.MaskedLanguageModel(encoder, 64, mask_token_id=4, special_token_ids=range(5))


def test_a_device_without_it_is_named():
    training = mw.TrainingConfig(device="cpu", precision="fp8", compile=True)
    with pytest.raises(InputError, match="needs an NVIDIA GPU of the Ada or Hopper generation"):
        Engine(build_model(), mw.OptimizerConfig(), mw.ScheduleConfig(), training, seed=0)


def test_what_runs_as_it_is_has_none():
    with pytest.raises(InputError, match="for compiled layers"):
        use_fp8_products(build_model(), CPU, is_compiled=False)
    with pytest.raises(InputError, match="Maskwright's own encoders"):
        use_fp8_products(nn.Sequential(nn.Linear(32, 32)), CPU, is_compiled=True)
