"""Whether to train with compiled kernels, and with products in fp8, which they alone have."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from maskwright.errors import InputError
from maskwright.models.layers import multiply_in_fp8
from maskwright.objectives.objective import Objective
from maskwright.sections.training import TrainingConfig
from maskwright.training.world import World


def should_record(model: Objective, training: TrainingConfig, device: torch.device, world: World) -> bool:
    """Whether the passes of a compiled model are recorded: in one process on a GPU, where nothing waits for the host.

    Layers that are computed twice look at the generator's state in between, which a recording cannot.
    """
    is_alone = device.type == "cuda" and world.size == 1
    return is_alone and model.is_recordable and not training.activation_checkpointing


def should_compile(training: TrainingConfig, device: torch.device, world: World) -> bool:
    """As configured, or on GPUs that have what it takes; layers cut over processes run as they are."""
    is_cut = world.size > 1 and training.parallel == "fsdp"
    lacks_triton = device.type == "cuda" and find_spec("triton") is None
    if training.compile is None:
        return device.type == "cuda" and not is_cut and not lacks_triton
    if training.compile and is_cut:
        raise InputError("training.compile does not go with training.parallel=fsdp; use ddp, or leave it out")
    if training.compile and lacks_triton:
        raise InputError("training.compile needs triton on a GPU, which is not installed; install it, or leave it out")
    return training.compile


def use_fp8_products(model: Objective, device: torch.device, is_compiled: bool) -> None:
    if not is_compiled:
        raise InputError("training.precision=fp8 is for compiled layers; leave out training.compile=false and fsdp")
    if not multiply_in_fp8(model, device):
        raise InputError("training.precision=fp8 is for Maskwright's own encoders, which this is not; use bf16")
