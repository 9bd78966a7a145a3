"""Every kind of prediction that one model can do, around one copy of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from maskwright.errors import InputError
from maskwright.inference.compilation import Compile, compile_layers
from maskwright.inference.loading import LoadedModel, Source, load_model
from maskwright.inference.pipeline import Pipeline, pipeline
from maskwright.inference.precision import ChosenPrecision, choose_inference_precision, convert
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.training.compute.device import choose_device

_ON_THE_ENCODER = ("embed", "similarity")
_ON_A_TASK = ("ner", "qa", "classify", "zero-shot")


@dataclass(frozen=True)
class EveryKind:
    loaded: LoadedModel
    pipelines: Mapping[str, Pipeline[Any, Any]]
    """By kind; what the model was made for comes first."""
    precision: ChosenPrecision | None = None
    """None: the dtype that a given model has."""


def build_pipelines(
    model: Source,
    tokenizer: Any = None,
    device: str | None = None,
    precision: str | None = None,
    compile: Compile | None = None,
) -> EveryKind:
    """A run, a checkpoint, a model folder or a hub id, or a model with its `tokenizer`, read once.

    It goes to a GPU if there is one, unless `device` says otherwise. `precision` and `compile` are those of `pipeline`:
    without them a model that was read has `auto`, and a given one stays as it is.
    """
    loaded = load_model(model, tokenizer)
    chosen_device = choose_device(device or "auto", "device")
    loaded.module.to(chosen_device).eval()
    chosen = None
    if precision is not None or not isinstance(model, nn.Module):
        chosen = choose_inference_precision(precision or "auto", chosen_device)
        convert(loaded.module, loaded.encoder.encoder, chosen.name)
    if chosen is not None or compile is not None:
        compile_layers(loaded.encoder.encoder, compile, "" if chosen is None else chosen.name)
    found: dict[str, Pipeline[Any, Any]] = {}
    if isinstance(loaded.whole, MaskedLanguageModel):
        found["fill-mask"] = pipeline("fill-mask", loaded.whole, loaded.tokenizer)
    elif loaded.whole is not None:
        for kind in _ON_A_TASK:
            options = {"labels": None} if kind == "zero-shot" else {}
            try:
                found[kind] = pipeline(kind, loaded.whole, loaded.tokenizer, **options)
            except InputError:  # which says that the model is for something else
                continue
    for kind in _ON_THE_ENCODER:
        found[kind] = pipeline(kind, loaded.encoder)
    return EveryKind(loaded, found, chosen)
