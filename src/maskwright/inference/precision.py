"""The dtype that a model answers in: named, or what is clearly faster than fp32 on this machine.

Heads of tasks, pooling, softmax and answers are in fp32 whatever the encoder computes in.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import nn

from maskwright.errors import InputError
from maskwright.inference.compilation import Compile, compile_layers
from maskwright.models.fp8 import has_fp8
from maskwright.models.int8 import quantize_linears
from maskwright.models.layers import multiply_in_fp8
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.suggestions import suggest
from maskwright.tasks.model import TaskModel
from maskwright.training.compute.precision import choose_precision

InferencePrecision = Literal["auto", "fp32", "bf16", "fp16", "fp8", "int8"]
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}


@dataclass(frozen=True)
class ChosenPrecision:
    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"


@dataclass(frozen=True)
class Computing:
    """How a model that is measured computes."""

    precision: str | None = None
    """None: fp32, which figures of models are compared in."""
    compile: Compile | None = None


def check_precision_name(name: str) -> None:
    if name not in get_args(InferencePrecision):
        raise InputError(f"no precision '{name}'{suggest(name, get_args(InferencePrecision))}")


def choose_inference_precision(name: str, device: torch.device) -> ChosenPrecision:
    """`auto` is bf16 where a measurement, made once on a machine, finds it clearly faster than fp32."""
    check_precision_name(name)
    if name == "auto":
        found = choose_precision("auto", device, ("bf16",))
        return ChosenPrecision(found.name, found.reason)
    if name == "fp8" and not has_fp8(device):
        raise InputError(
            f"precision is fp8, which {device} does not have; it needs an NVIDIA GPU of the Ada or Hopper generation or"
            " later: use auto"
        )
    if name == "fp16" and device.type == "cpu":
        raise InputError("precision is fp16, which is for GPUs; use auto, fp32, bf16 or int8 on a CPU")
    if name == "int8" and device.type != "cpu":
        raise InputError(f"precision is int8, which is for CPUs, and the model is on {device}; use auto, bf16 or fp16")
    return ChosenPrecision(name, "as asked for")


def convert(module: nn.Module, encoder: nn.Module, name: str) -> None:
    """Have a model compute in a precision, in place: its encoder, and with it a head that shares weights with it.

    The head of a task stays as it is. fp8 is for the products of compiled layers; all else is in bf16.
    """
    if name == "fp8" and not multiply_in_fp8(encoder, next(encoder.parameters()).device):
        raise InputError("precision is fp8, which is for Maskwright's own encoders, and this is none; use bf16")
    if name == "int8":
        encoder.float()
        quantize_linears(encoder)
    elif isinstance(module, TaskModel):
        encoder.to(_DTYPES[name])
    else:
        module.to(_DTYPES[name])


def prepare_model(
    model: MaskedLanguageModel, name: str | None, *, is_given: bool, compile: Compile | None = None
) -> MaskedLanguageModel:
    """A language model in a precision: unset, a given one keeps its dtype and one that was read gets `auto`."""
    if name is None and compile is None and is_given:
        return model
    if name is None and is_given:
        model = copy.deepcopy(model)
        compile_layers(model.encoder, compile, "")
        return model
    chosen = choose_inference_precision(name or "auto", next(model.parameters()).device)
    model = copy.deepcopy(model) if is_given else model
    convert(model, model.encoder, chosen.name)
    compile_layers(model.encoder, compile, chosen.name)
    return model
