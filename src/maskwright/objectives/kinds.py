"""The kinds of language model that share an encoder and a prediction head, by what they were trained to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from maskwright.errors import InputError
from maskwright.models.files.model_folder import read_own_settings
from maskwright.objectives.causal_lm import CausalLanguageModel
from maskwright.objectives.hybrid_lm import HybridLanguageModel
from maskwright.objectives.masked_lm import MaskedLanguageModel

Build = Callable[..., MaskedLanguageModel]


def describe_objective(model: MaskedLanguageModel) -> dict[str, Any]:
    """What config.json says of it beside the settings that all kinds have."""
    if isinstance(model, HybridLanguageModel):
        share = None if callable(model.causal_share) else model.causal_share
        return {
            "mode": model.mode,
            "causal_share": share,
            "shifts_masks": model.shifts_masks,
            "evaluates_causally": model.evaluates_causally,
        }
    return {"mode": model.mode}


def find_objective(config: Mapping[str, Any]) -> Build:
    """The kind that a config.json describes; without our word on it, a decoder is causal."""
    described = read_own_settings(config, "objective")
    share, mode = described.get("causal_share"), described.get("mode", "clm" if config.get("is_decoder") else "mlm")
    if not isinstance(mode, str) or not (share is None or type(share) in (int, float)):
        raise InputError(f"'objective' of config.json is {described!r}, which is no objective of a model")
    match mode:
        case "clm":
            return CausalLanguageModel
        case "hybrid":
            return partial(
                HybridLanguageModel,
                causal_share=0.0 if share is None else float(share),
                shifts_masks=bool(described.get("shifts_masks", True)),
                evaluates_causally=bool(described.get("evaluates_causally", False)),
            )
    return MaskedLanguageModel
