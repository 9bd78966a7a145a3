"""A trained model for longer texts than it was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from maskwright.errors import InputError
from maskwright.models.modernbert import ModernBERT

STRETCHING_SETTINGS = ("max_position_embeddings", "global_rope_theta", "local_rope_theta")
"""Settings of rotary positions: they are in no weight, so a model to continue from can take others."""


def stretch_positions(model: nn.Module, settings: Mapping[str, Any], source: str) -> None:
    """Give every encoder of the model (one that detects replaced tokens has two) these settings.

    A larger base turns the features of a position more slowly, which keeps angles within what training has shown.
    """
    encoders = [module for module in model.modules() if isinstance(module, ModernBERT)]
    if not encoders:
        name = next(iter(settings))
        raise InputError(
            f"model.from={source} brings its own shape; remove model.{name}, which only rotary positions (ModernBERT)"
            " can change"
        )
    for encoder in encoders:
        encoder.config = replace(encoder.config, **settings)
