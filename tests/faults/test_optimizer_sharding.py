"""Weights in parts over two processes are stepped like whole ones."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import pytest
import torch
import torch.distributed as dist
from prestarted import Prestarted
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from maskwright.sections.training import OptimizerConfig
from maskwright.training.distributed.world import distribute_like, gather_whole
from maskwright.training.optim import algorithms
from maskwright.training.optim.optimizers import OptimizerSet, build_optimizers
from tolerances import assert_rounded

_MOST_ELEMENTS = 3 * 6 * 6  # of the largest matrix
_TYPES = get_args(OptimizerConfig.model_fields["type"].annotation)
_MOST_USED = ("adamw", "muon")


@pytest.mark.parametrize(
    "types", [_MOST_USED, pytest.param([one for one in _TYPES if one not in _MOST_USED], marks=pytest.mark.slow)]
)
def test_every_optimizer_steps_parts_like_the_whole(
    prestarted: Prestarted, tmp_path: Path, types: Sequence[str]
) -> None:
    arguments = {"types": list(types)}
    ranks = prestarted.start_ranks("test_optimizer_sharding:compare_in_process", arguments, tmp_path / "said", 2)
    for rank in ranks:
        assert rank.wait(200.0) == 0, rank.text()


def compare_in_process(types: Sequence[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        mesh = init_device_mesh("cpu", (2,))
        for optimizer_type in types:
            _compare(optimizer_type, mesh)
    finally:
        dist.destroy_process_group()


class Model(nn.Module):
    """Odd sizes, whose parts are unequal; one matrix of a single row, of which the second process has nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 6)
        self.attention = nn.MultiheadAttention(6, 2)
        self.dense = nn.Linear(6, 9)
        self.norm = nn.LayerNorm(9)
        self.output = nn.Linear(9, 1)


def _compare(type: str, mesh: DeviceMesh) -> None:
    torch.manual_seed(0)
    whole = Model()
    parts = copy.deepcopy(whole)
    fully_shard(parts, mesh=mesh)
    assert all(isinstance(param, DTensor) for param in parts.parameters())
    config = OptimizerConfig(type=type, learning_rate=0.1, weight_decay=0.2)
    optimizers, of_parts = build_optimizers(whole, config), build_optimizers(parts, config)
    for seed in range(2):
        _step(whole, optimizers, seed)
        _step(parts, of_parts, seed)
    _assert_same(type, whole, optimizers, parts, of_parts)

    _skip(parts, of_parts)
    _assert_same(type, whole, optimizers, parts, of_parts)

    resumed = build_optimizers(parts, config)
    resumed.load_state_tensors({name: tensor.clone() for name, tensor in optimizers.state_tensors().items()})
    _step(whole, optimizers, 2)
    _step(parts, resumed, 2)
    _assert_same(type, whole, optimizers, parts, resumed)


def _step(model: nn.Module, optimizers: OptimizerSet, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for param in model.parameters():
        param.grad = distribute_like(torch.randn(param.shape, generator=generator), param)
    optimizers.step()


def _skip(parts: nn.Module, of_parts: OptimizerSet) -> None:
    """A step as on devices, where the flag is not read, with broken gradients."""
    for param in parts.parameters():
        param.grad = torch.full_like(param, float("nan"))
    is_on_host = algorithms.is_on_host
    algorithms.is_on_host = lambda tensor: False
    of_parts.step(torch.ones(()))
    algorithms.is_on_host = is_on_host


def _assert_same(
    type: str, whole: nn.Module, optimizers: OptimizerSet, parts: nn.Module, of_parts: OptimizerSet
) -> None:
    for name, param in whole.named_parameters():
        found = gather_whole(parts.get_parameter(name))
        assert_rounded({f"{type} {name}": found}, {f"{type} {name}": param}, param.numel())
    expected, found_state = optimizers.state_tensors(), of_parts.state_tensors()
    assert list(found_state) == list(expected), type
    for name, value in expected.items():
        assert not isinstance(found_state[name], DTensor)
        assert_rounded({f"{type} {name}": found_state[name]}, {f"{type} {name}": value}, _MOST_ELEMENTS)
