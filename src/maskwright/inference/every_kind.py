"""Every kind of prediction that one model can do, around one copy of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from maskwright.errors import InputError
from maskwright.inference.loading import LoadedModel, Source, load_model
from maskwright.inference.pipeline import Pipeline, pipeline
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.training.compute.device import choose_device

_ON_THE_ENCODER = ("embed", "similarity")
_ON_A_TASK = ("ner", "qa", "classify", "zero-shot")


@dataclass(frozen=True)
class EveryKind:
    loaded: LoadedModel
    pipelines: Mapping[str, Pipeline[Any, Any]]
    """By kind; what the model was made for comes first."""


def build_pipelines(model: Source, tokenizer: Any = None, device: str | None = None) -> EveryKind:
    """A run, a checkpoint, a model folder or a hub id, or a model with its `tokenizer`, read once.

    It goes to a GPU if there is one, unless `device` says otherwise.
    """
    loaded = load_model(model, tokenizer)
    loaded.module.to(choose_device(device or "auto", "device")).eval()
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
    return EveryKind(loaded, found)
