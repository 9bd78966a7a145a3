"""The device to compute on, and contexts for evaluation mode and for the memory of a CPU."""

from __future__ import annotations

import ctypes
import platform
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from maskwright.errors import InputError, InputWarning
from maskwright.training.compute.trial import find_trouble
from maskwright.training.distributed.world import choose_gpu, is_launched

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt(3)."""
_LARGEST_KEPT = 1 << 27
"""Bytes of a block: larger ones are too few to be reused well."""
_USUAL_LARGEST = 1 << 25
"""What glibc's own threshold grows to when large blocks are freed; that for trimming grows to twice as much."""


def choose_device(name: str, setting: str = "training.device") -> torch.device:
    """`auto` is an NVIDIA GPU, else an Apple GPU on which a trial step works, else the CPU; each process of a machine
    gets its own GPU, where there are as many. `setting` is named in errors.
    """
    if name == "auto":
        name = _choose_kind()
    if name == "cuda" and is_launched() and torch.cuda.is_available():
        name = f"cuda:{choose_gpu()}"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"{setting} is '{name}'; known are auto, cpu, cuda, cuda:N and mps") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"{setting} is '{name}', but this machine has no CUDA GPU; use auto or cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"{setting} is '{name}', but this machine has {torch.cuda.device_count()} CUDA GPUs")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise InputError(f"{setting} is '{name}', but torch finds no Apple GPU on this machine; use auto or cpu")
    if device.type == "mps" and is_launched():
        raise InputError(f"{setting} is '{name}', which several processes cannot share; use cpu, or one process")
    return device


def _choose_kind() -> str:
    if torch.cuda.is_available():
        return "cuda"
    if not torch.backends.mps.is_available() or is_launched():
        return "cpu"
    trouble = find_trouble(torch.device("mps"))
    if trouble is not None:
        warnings.warn(f"the Apple GPU is not used, because a trial step failed ({trouble})", InputWarning, stacklevel=3)
    return "mps" if trouble is None else "cpu"


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block; afterwards every module has its previous mode, also after an error."""
    changed = [part for part in module.modules() if part.training]
    for part in changed:
        part.training = False
    try:
        yield
    finally:
        for part in changed:
            part.training = True


@contextmanager
def keeping_freed_memory(device: torch.device) -> Iterator[None]:
    """Inside the block, tensors that a step on a CPU frees leave their memory to those of the next step.

    glibc would give it back to the system, which has to clear it for every step anew. Elsewhere nothing changes.
    """
    if device.type != "cpu" or platform.libc_ver()[0] != "glibc":
        yield
        return
    library = ctypes.CDLL(None)
    library.mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT)
    library.mallopt(_TRIM_THRESHOLD, torch.iinfo(torch.int32).max)
    try:
        yield
    finally:
        library.mallopt(_MMAP_THRESHOLD, _USUAL_LARGEST)
        library.mallopt(_TRIM_THRESHOLD, 2 * _USUAL_LARGEST)
        library.malloc_trim(0)
