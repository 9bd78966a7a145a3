"""A trained model for longer texts than it was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from maskwright.errors import InputError
from maskwright.models.encoder import PackedEncoder

_BASES = ("global_rope_theta", "local_rope_theta")
STRETCHING_SETTINGS = ("max_position_embeddings", *_BASES)
"""Settings of rotary positions: they are in no weight, so a model to continue from can take others."""


def stretch_positions(model: nn.Module, settings: Mapping[str, Any], source: str, ramp_share: float) -> None:
    """Give every encoder of the model (one that detects replaced tokens has two) these settings.

    A larger base turns the features of a position more slowly, which keeps angles within what training has shown. It
    is there at once, or grows over the first share of the run.
    """
    if ramp_share and not settings.keys() & _BASES:
        raise InputError(
            f"model.rope_ramp_share is {ramp_share}, but no rotary base changes; set model.global_rope_theta too"
        )
    if not settings:
        return
    modules = [module for module in model.modules() if isinstance(module, PackedEncoder)]
    encoders = [encoder for encoder in modules if settings.keys() <= set(encoder.stretching_settings)]
    if not encoders:
        name = next(iter(settings))
        raise InputError(
            f"model.from={source} brings its own shape; remove model.{name}, which only rotary positions (ModernBERT)"
            " can change"
        )
    for encoder in encoders:
        encoder.stretch(settings, ramp_share)
