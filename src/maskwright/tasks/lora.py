"""LoRA (Hu et al. 2021): two small trained factors beside every matrix of a frozen encoder, by the library peft.

Query, key and value are one product in our encoders, as in transformers' ModernBERT, so the three share the first of
their factors. R rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from maskwright.errors import InputError
from maskwright.models.family import State
from maskwright.models.files.safetensors_file import write_safetensors

ADAPTERS_FILE = "adapters.safetensors"
"""The factors in a checkpoint's model folder, beside the weights that they make."""
_SCALE = 2.0
"""Of the factors' product, whatever the rank."""
_ADAPTER = "default"
_BASE = ".base_layer."
_FACTORS = (f".lora_A.{_ADAPTER}.weight", f".lora_B.{_ADAPTER}.weight")
_POOLER = "pooler."
_PEFT_WEIGHTS = "adapter_model.safetensors"
_PEFT_PREFIX = "base_model.model."
_PEFT_TASKS = {
    "ForSequenceClassification": "SEQ_CLS",
    "ForTokenClassification": "TOKEN_CLS",
    "ForQuestionAnswering": "QUESTION_ANS",
    "Model": "FEATURE_EXTRACTION",
}
"""peft's kinds of models by the endings of transformers' classes."""


def check_installed() -> None:
    if find_spec("peft") is None:
        raise InputError("LoRA needs an extra; run: pip install 'maskwright[lora]'")


def add_adapters(encoder: nn.Module, rank: int) -> None:
    """Freeze an encoder, and put factors beside all of its matrices; they change nothing until they are trained.

    A pooler, which may be new, is left to be trained as the rest of the head is.
    """
    check_installed()
    attentions = [part for part in encoder.modules() if isinstance(part, nn.MultiheadAttention)]
    owners = {id(part) for attention in attentions for part in attention.modules()}
    names = [
        f"encoder.{name}"
        for name, part in encoder.named_modules()
        if isinstance(part, nn.Linear) and id(part) not in owners  # whose weights are read past the module
        if not name.startswith(_POOLER)
    ]
    if not names:
        raise InputError(f"{type(encoder).__name__} has no nn.Linear, which LoRA works on; train all weights instead")
    peft = _import_peft()
    config = peft.LoraConfig(r=rank, lora_alpha=_SCALE * rank, target_modules=names, lora_dropout=0.0, bias="none")
    holder = nn.Module()  # without a `config` of its own, which peft would read
    holder.encoder = encoder
    peft.inject_adapter_in_model(config, holder, _ADAPTER)
    for name, param in encoder.named_parameters():
        if name.startswith(_POOLER):
            param.requires_grad_(True)


def _import_peft() -> Any:
    return import_module("peft")


def has_adapters(module: nn.Module) -> bool:
    return any(name.endswith(_FACTORS[0]) for name, _ in module.named_parameters())


def is_factor(name: str) -> bool:
    return name.endswith(_FACTORS)


def list_plain(state: Mapping[str, Tensor]) -> State:
    """A state without factors, under the names that weights have without them."""
    return {name.replace(_BASE, "."): tensor for name, tensor in state.items() if not is_factor(name)}


@torch.no_grad()
def merge_state(state: Mapping[str, Tensor]) -> State:
    """A state with the plain names, in which every matrix has its factors' product added, and with the factors."""
    merged = list_plain(state)
    for name in state:
        if name.endswith(_FACTORS[0]):
            place = name.removesuffix(_FACTORS[0])
            first, second = (state[f"{place}{factor}"] for factor in _FACTORS)
            merged[f"{place}.weight"] = _add(state[f"{place}{_BASE}weight"], first, second)
    return merged | {name: tensor for name, tensor in state.items() if is_factor(name)}


def _add(weight: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """In float64, so that the result is rounded once, whatever precision the products of a GPU have."""
    place = torch.device("cpu") if weight.device.type == "mps" else weight.device
    base, first, second = (one.to(place, torch.float64) for one in (weight, first, second))
    return (base + _SCALE * (second @ first)).to(weight.device, weight.dtype)


@torch.no_grad()
def merge_adapters(module: nn.Module) -> None:
    """Leave the module with plain matrices that compute what they computed with their factors."""
    merged = merge_state(module.state_dict())
    for name, part in list(module.named_modules()):
        base = getattr(part, "base_layer", None)
        if base is not None and hasattr(part, "lora_A"):
            parent, _, child = name.rpartition(".")
            setattr(module.get_submodule(parent), child, base)
    module.load_state_dict({name: tensor for name, tensor in merged.items() if not is_factor(name)})


def check_merged(merged: Mapping[str, Tensor], stored: Mapping[str, Tensor], folder: Path) -> None:
    """Refuse factors whose encoder is not the one they were trained beside."""
    for name, tensor in merged.items():
        theirs = stored.get(name)
        if theirs is None or is_factor(name):
            continue
        # Both sums were rounded once, perhaps by another machine.
        error = torch.finfo(tensor.dtype).eps * float(tensor.abs().max())
        if theirs.shape != tensor.shape or float((theirs.to(tensor) - tensor).abs().max()) > error:
            raise InputError(
                f"{folder} was trained with LoRA beside another encoder: '{name}' differs; give the model that the run"
                " was started from"
            )


class AdapterFolder:
    """A copy of a model's factors and head, to be written in peft's format: it goes on the encoder as published."""

    def __init__(
        self, state: Mapping[str, Tensor], names: Mapping[str, tuple[str, ...]], head: Iterable[str], architecture: str
    ) -> None:
        """`names` are transformers' names of weights by ours, `head` ours of what was trained beside the factors."""
        self._rank = next(len(tensor) for name, tensor in state.items() if name.endswith(_FACTORS[0]))
        self._task = next(kind for ending, kind in _PEFT_TASKS.items() if architecture.endswith(ending))
        self._targets: list[str] = []
        self._weights: State = {}
        for name, first in state.items():
            if not name.endswith(_FACTORS[0]):
                continue
            place = name.removesuffix(_FACTORS[0])
            theirs = [one.removesuffix(".weight") for one in names[f"{place}.weight"]]
            second = state[f"{place}{_FACTORS[1]}"]
            for target, block in zip(theirs, second.chunk(len(theirs)), strict=True):
                self._weights[f"{_PEFT_PREFIX}{target}.lora_A.weight"] = _copy(first)
                self._weights[f"{_PEFT_PREFIX}{target}.lora_B.weight"] = _copy(block)
                self._targets.append(target)
        kept = {theirs: state[ours] for ours in head for theirs in names[ours]}
        self._weights |= {f"{_PEFT_PREFIX}{name}": _copy(tensor) for name, tensor in kept.items()}
        roots = {target.partition(".")[0] for target in self._targets}
        modules = {name.rpartition(".")[0] for name in kept}
        # Heads are kept as a whole, as peft does by itself, and of the encoder the part that was trained.
        tops = {name: name.partition(".")[0] for name in modules}
        self._saved = sorted({name if top in roots else top for name, top in tops.items()})

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._weights.values())

    def write(self, folder: Path, model: str) -> None:
        """`model` is the name of the encoder that the factors belong to."""
        peft = _import_peft()
        config = peft.LoraConfig(
            r=self._rank,
            lora_alpha=_SCALE * self._rank,
            target_modules=self._targets,
            modules_to_save=self._saved or None,
            lora_dropout=0.0,
            bias="none",
            task_type=self._task,
            inference_mode=True,
            base_model_name_or_path=model,
        )
        folder.mkdir(parents=True, exist_ok=True)
        config.save_pretrained(str(folder))
        write_safetensors(folder / _PEFT_WEIGHTS, self._weights)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
