"""How a model computes its answers: in which dtype, with compiled layers or not, and when as CUDA graphs.

The dtype is named, or what is clearly faster than fp32 on this machine. Heads of tasks, pooling, softmax and answers
are in fp32 whatever the encoder computes in. Layers are compiled on GPUs, where a job is large enough to repay it;
passes over short texts, of which Python launches fewer a second than a GPU computes, are replayed as CUDA graphs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal, get_args

import torch
from torch import nn

from maskwright.batch import PackedBatch
from maskwright.errors import InputError
from maskwright.models.any_encoder import encode, find_hidden_size, has_flat_rows
from maskwright.models.bert import BERT
from maskwright.models.compilation import InferenceCompiler
from maskwright.models.encoder import PackedEncoder
from maskwright.models.fp8 import has_fp8
from maskwright.models.layers import multiply_in_fp8
from maskwright.models.products import pack_weights, quantize_linears
from maskwright.models.recording import InferenceRecorder
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.suggestions import suggest
from maskwright.tasks.model import TaskModel
from maskwright.training.compute.precision import PrecisionName, find_speeds, measure_speeds, pick, time_by_turns

Compile = bool | str
"""True, False, or auto, true or false as a word."""
InferencePrecision = Literal["auto", "fp32", "bf16", "fp16", "fp8", "int8"]
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}
_TIMED_TEXTS, _TIMED_LENGTH = 32, 64
_TIMED_ALONE, _ALONE_LENGTH = 16, 16
_HEAD_SIZE = 64
_COMPILE_NAMES: dict[str, bool | None] = {"auto": None, "true": True, "false": False}
_REPAID_TOKENS = 1 << 27
"""A compiled BERT-base saves an H200 some 50 ns a token of long texts (norms, sums and activations in fewer kernels),
and compiling it takes 5 to 10 s."""
_REPAID_LENGTH = 128
"""Of short texts Python does more for a token, and more for compiled layers: they were a tenth slower at 23 tokens a
text, and a tenth faster at 450."""


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


def choose_inference_precision(name: str, device: torch.device, width: int) -> ChosenPrecision:
    """`auto` is bf16 where a measurement, made once on a machine, finds it clearly faster than fp32.

    `width` is that of the encoder's layers.
    """
    check_precision_name(name)
    if name == "auto":
        measure = _measure_reading if device.type == "cpu" else measure_speeds
        found = pick(find_speeds("inference", device, width, measure), ("bf16",))
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


def _measure_reading(device: torch.device, width: int) -> dict[str, float]:
    """How many times as fast as in fp32 a layer reads texts on a CPU."""
    dtypes: dict[PrecisionName, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}
    return time_by_turns({name: _build_reading(dtype, width) for name, dtype in dtypes.items()}, device)


def _build_reading(dtype: torch.dtype, width: int) -> Callable[[], None]:
    """One layer of BERT over a batch of texts, and over as many short ones alone as take about as long."""
    with torch.random.fork_rng(devices=[]):
        shape = {"hidden_size": width, "num_attention_heads": width // _HEAD_SIZE, "num_hidden_layers": 1}
        encoder = BERT.from_variant("tiny", vocab_size=_TIMED_TEXTS, **shape).to(dtype).eval()
    batch, alone = _lay_out_equal(_TIMED_TEXTS, _TIMED_LENGTH), _lay_out_equal(1, _ALONE_LENGTH)

    @torch.inference_mode()
    def run() -> None:
        for packed in (batch, *[alone] * _TIMED_ALONE):
            encode(encoder, packed)

    return run


def _lay_out_equal(num_texts: int, length: int) -> PackedBatch:
    """Texts of one length, in one row."""
    numbers = torch.arange(num_texts).repeat_interleave(length)[None]
    positions = torch.arange(length).repeat(num_texts)[None]
    return PackedBatch(numbers, numbers + 1, positions, numbers)


def convert(module: nn.Module, encoder: nn.Module, name: str) -> None:
    """Have a model compute in a precision, in place: its encoder, and with it a head that shares weights with it.

    The head of a task stays as it is, unless it shares some. fp8 is for the products of compiled layers; all else is in
    bf16.
    """
    if name == "fp8" and not multiply_in_fp8(encoder, next(encoder.parameters()).device):
        raise InputError("precision is fp8, which is for Maskwright's own encoders, and this is none; use bf16")
    if name == "int8":
        encoder.float()
        quantize_linears(encoder)
    elif isinstance(module, TaskModel) and not _shares_weights(module):
        encoder.to(_DTYPES[name])
    else:
        module.to(_DTYPES[name])
    pack_weights(module)


def _shares_weights(model: TaskModel) -> bool:
    own = {id(param) for param in model.encoder.parameters()}
    return any(id(param) in own for param in model.task_head.parameters())


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
    if given not in _COMPILE_NAMES:
        raise InputError(f"compile is {given!r}; expected auto, true or false")
    return _COMPILE_NAMES[given]


def compile_layers(encoder: nn.Module, given: Compile | None, precision: str) -> ChosenCompilation:
    """Have an encoder compile its layers as asked for, in place, and record its passes over short texts."""
    asked = read_compile(given)
    if isinstance(encoder, PackedEncoder):
        encoder.inference_compiler = encoder.inference_recorder = None
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
    encoder.inference_recorder = InferenceRecorder()
    encoder.inference_compiler = (
        InferenceCompiler() if is_at_once else InferenceCompiler(_REPAID_TOKENS, _REPAID_LENGTH)
    )
    if is_at_once:
        return ChosenCompilation(True, "as asked for" if asked else "fp8 is for compiled layers")
    texts = f"texts of {_REPAID_LENGTH} and more"
    return ChosenCompilation(
        False, f"until {_REPAID_TOKENS / 1e6:.0f} million tokens have been read, in {texts}, which repay it"
    )


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
    width = find_hidden_size(model.encoder)
    chosen = choose_inference_precision(name or "auto", next(model.parameters()).device, width)
    model = copy.deepcopy(model) if is_given else model
    convert(model, model.encoder, chosen.name)
    compile_layers(model.encoder, compile, chosen.name)
    return model
