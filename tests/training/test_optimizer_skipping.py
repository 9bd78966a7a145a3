"""Steps that a tensor calls off, on the CPU and as on devices, where the tensor must not be read."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from torch import nn

from maskwright.sections.training import OptimizerConfig
from maskwright.training.optim import algorithms
from maskwright.training.optim.optimizers import OptimizerSet, build_optimizers

TYPES = get_args(OptimizerConfig.model_fields["type"].annotation)


@pytest.fixture(params=["cpu", "as_on_device", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, monkeypatch) -> torch.device:
    """`as_on_device` walks the path of devices, with tensors on the CPU."""
    if request.param == "as_on_device":
        monkeypatch.setattr(algorithms, "is_on_host", lambda tensor: False)
    return torch.device("cuda" if request.param == "cuda" else "cpu")


@pytest.fixture(params=TYPES)
def trained(request, device) -> tuple[nn.Module, OptimizerSet]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 3)).to(device)
    config = OptimizerConfig(type=request.param, learning_rate=0.1, weight_decay=0.2)
    return model, build_optimizers(model, config)


def step(trained: tuple[nn.Module, OptimizerSet], seed: int, skip: float | None = None, factor: float = 1.0) -> None:
    model, optimizers = trained
    generator = torch.Generator().manual_seed(seed)
    for param in model.parameters():
        param.grad = torch.randn(param.shape, generator=generator).to(param.device) * factor
    optimizers.step(None if skip is None else torch.tensor(skip, device=param.device))


def copy_bits(trained: tuple[nn.Module, OptimizerSet]) -> dict[str, torch.Tensor]:
    """All weights and state, as bytes, for which -0 is not 0."""
    model, optimizers = trained
    tensors = {**dict(model.named_parameters()), **optimizers.state_tensors()}
    return {name: tensor.detach().clone().reshape(-1).view(torch.uint8) for name, tensor in tensors.items()}


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert torch.equal(value, expected[name]), name


@pytest.mark.parametrize("factor", [float("nan"), float("inf"), 1.0])
def test_a_skipped_step_changes_no_bit(trained, factor):
    model, _ = trained
    for seed in range(2):
        step(trained, seed)
    with torch.no_grad():
        model[1].weight[0, 0] = -0.0
    before = copy_bits(trained)
    step(trained, 2, skip=1.0, factor=factor)
    assert_same(copy_bits(trained), before)


def test_a_skipped_step_may_come_first(trained):
    model, optimizers = trained
    start = {name: param.detach().clone() for name, param in model.named_parameters()}
    step(trained, 0, skip=1.0, factor=float("nan"))
    for name, param in model.named_parameters():
        assert torch.equal(param, start[name]), name
    assert all(torch.equal(value, torch.zeros_like(value)) for value in optimizers.state_tensors().values())
    for seed in (1, 2):
        step(trained, seed)
    after_skip = copy_bits(trained)

    with torch.no_grad():
        for name, param in model.named_parameters():
            param.copy_(start[name])
    for optimizer in optimizers.optimizers:
        optimizer.state.clear()
    for seed in (1, 2):
        step(trained, seed)
    assert_same(after_skip, copy_bits(trained))


def test_a_step_that_is_not_skipped_is_an_ordinary_one(trained):
    model, optimizers = trained
    start = {name: param.detach().clone() for name, param in model.named_parameters()}
    for seed in range(3):
        step(trained, seed, skip=0.0)
    with_flag = copy_bits(trained)
    assert all(not torch.equal(param, start[name]) for name, param in model.named_parameters())

    with torch.no_grad():
        for name, param in model.named_parameters():
            param.copy_(start[name])
    for optimizer in optimizers.optimizers:
        optimizer.state.clear()
    for seed in range(3):
        step(trained, seed)
    assert_same(with_flag, copy_bits(trained))


@pytest.mark.gpu
@pytest.mark.parametrize("type", TYPES)
def test_no_step_waits_for_the_gpu(type):
    model = nn.Linear(8, 8, device="cuda")
    trained = model, build_optimizers(model, OptimizerConfig(type=type))
    step(trained, 0, skip=0.0)  # state is created
    skip = torch.ones((), device="cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        trained[1].step(skip)
    finally:
        torch.cuda.set_sync_debug_mode("default")
