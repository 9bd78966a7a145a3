"""The device to compute on, and a context for evaluation mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from maskwright.errors import InputError
from maskwright.training.distributed.world import is_launched, local_rank


def choose_device(name: str, setting: str = "training.device") -> torch.device:
    """`auto` is a GPU else the CPU; each process of a machine gets its own GPU. `setting` is named in errors."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and is_launched():
        name = f"cuda:{local_rank()}"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"{setting} is '{name}'; known are auto, cpu, cuda and cuda:N") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"{setting} is '{name}', but this machine has no CUDA GPU; use auto or cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"{setting} is '{name}', but this machine has {torch.cuda.device_count()} CUDA GPUs")
    return device


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block; afterwards every module has its previous mode, also after an error."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, is_training in modes.items():
            part.training = is_training
