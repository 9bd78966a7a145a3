"""Whether the layers of a model are compiled to answer: on GPUs, where a job is large enough to repay it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import nn

from maskwright.errors import InputError
from maskwright.models.any_encoder import has_flat_rows
from maskwright.models.compilation import InferenceCompiler
from maskwright.models.encoder import PackedEncoder

Compile = bool | str
"""True, False, or auto, true or false as a word."""
_NAMES: dict[str, bool | None] = {"auto": None, "true": True, "false": False}
_REPAID_TOKENS = 1 << 27
"""A compiled BERT-base saves a GPU some 50 ns a token (norms, sums and activations in fewer kernels), and compiling it
takes 5 to 10 s."""


@dataclass(frozen=True)
class ChosenCompilation:
    is_on: bool
    reason: str

    def __str__(self) -> str:
        return f"{str(self.is_on).lower()} ({self.reason})"


def read_compile(given: Compile | None) -> bool | None:
    """None is `auto`."""
    if given is None or isinstance(given, bool):
        return given
    if given not in _NAMES:
        raise InputError(f"compile is {given!r}; expected auto, true or false")
    return _NAMES[given]


def compile_layers(encoder: nn.Module, given: Compile | None, precision: str) -> ChosenCompilation:
    """Have an encoder compile its layers as asked for, in place."""
    asked = read_compile(given)
    if asked is False and precision == "fp8":
        raise InputError("precision is fp8, which is for compiled layers; leave out compile=false")
    problem = _find_problem(encoder)
    if problem and (asked or precision == "fp8"):
        wanted = "compile is true" if asked else "precision is fp8, which is for compiled layers"
        raise InputError(f"{wanted}, and {problem}; use compile=auto and another precision")
    if problem or asked is False:
        return ChosenCompilation(False, problem or "as asked for")
    assert isinstance(encoder, PackedEncoder)
    is_at_once = bool(asked) or precision == "fp8"
    encoder.inference_compiler = InferenceCompiler(0 if is_at_once else _REPAID_TOKENS)
    if is_at_once:
        return ChosenCompilation(True, "as asked for" if asked else "fp8 is for compiled layers")
    return ChosenCompilation(False, f"until {_REPAID_TOKENS / 1e6:.0f} million tokens have been read, which repay it")


def _find_problem(encoder: nn.Module) -> str:
    device = next(encoder.parameters()).device
    if device.type != "cuda":
        return "the model is not on a GPU"
    if not isinstance(encoder, PackedEncoder) or not has_flat_rows(encoder):
        dtype = str(next(encoder.parameters()).dtype).removeprefix("torch.")
        return f"a {type(encoder).__name__} in {dtype} is not read in flat rows, for which layers are compiled"
    if find_spec("triton") is None:
        return "triton is not installed"
    return "" if torch.cuda.get_device_capability(device) >= (8, 0) else "the GPU is older than Ampere"
