"""What a notebook shows of a model: its size, its shape and what it was made for, in a small table."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from maskwright.pictures.look import build_facts, frame_cell

_SHAPE = {
    "num_hidden_layers": "layers",
    "hidden_size": "width",
    "num_attention_heads": "attention heads",
    "vocab_size": "vocabulary",
    "max_position_embeddings": "longest input",
}
"""Fields of an encoder's configuration, with their names."""


def build_model_html(model: nn.Module, encoder: nn.Module, purpose: Mapping[str, str]) -> str:
    """`purpose` is what the class of the model knows beside its encoder."""
    parameters = list(model.parameters())
    trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    total = sum(parameter.numel() for parameter in parameters)
    facts = dict(purpose)
    if encoder is not model:
        facts["encoder"] = type(encoder).__name__
    facts["parameters"] = f"{total:,}" + ("" if trained == total else f", of which {trained:,} are trained")
    config = getattr(encoder, "config", None)
    shape = {label: getattr(config, name, None) for name, label in _SHAPE.items()}
    facts |= {label: f"{value:,}" for label, value in shape.items() if isinstance(value, int)}
    where = parameters[0] if parameters else None
    if where is not None:
        facts["dtype, device"] = f"{str(where.dtype).removeprefix('torch.')}, {where.device}"
    return frame_cell(build_facts(type(model).__name__, facts))
