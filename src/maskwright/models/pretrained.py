"""Model folders: config.json and model.safetensors in, an encoder out, and back.

A model that Hugging Face's architecture can express is written under its `model_type`, so that other tools read it;
any other is written under a type of ours, so that they refuse it rather than compute something different.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from maskwright.errors import InputError
from maskwright.models.encoder import PackedEncoder
from maskwright.models.families import FAMILIES, family_of
from maskwright.models.family import Family
from maskwright.models.files.model_folder import (
    CONFIG_FILE,
    OWN_KEY,
    OWN_TYPE_PREFIX,
    copy_to_cpu,
    read_model_folder,
    read_own_settings,
    resolve_folder,
    write_model_folder,
)
from maskwright.suggestions import suggest


def find_family(config: Mapping[str, Any], folder: Path) -> Family:
    if "model_type" not in config:
        raise InputError(f"{folder / CONFIG_FILE} has no 'model_type'; add the one it is{suggest('', FAMILIES)}")
    model_type = str(config["model_type"]).removeprefix(OWN_TYPE_PREFIX)
    if model_type not in FAMILIES:
        raise InputError(f"{folder / CONFIG_FILE} has model_type '{model_type}'{suggest(model_type, FAMILIES)}")
    return FAMILIES[model_type]


def describe_encoder(encoder: PackedEncoder, with_head: bool, is_expressible: bool = True) -> dict[str, Any]:
    """config.json of a model."""
    family = family_of(encoder)
    values, own = family.split_config(encoder.config)
    is_expressible &= own.get("normalization_type", "layer_norm") == "layer_norm"
    is_expressible &= not family.find_unusual(encoder.config)
    prefix = "" if is_expressible else OWN_TYPE_PREFIX
    return {
        "model_type": f"{prefix}{family.model_type}",
        "architectures": [f"{prefix}{family.architectures[with_head]}"],
        **values,
        OWN_KEY: {"encoder": own},
    }


def build_encoder(config: Mapping[str, Any], folder: Path, weights: Mapping[str, Tensor]) -> PackedEncoder:
    """The encoder a config.json describes, to be filled with `weights`; until then its own are arbitrary.

    They are compared with what the configuration asks for before memory is taken for it.
    """
    encoder = outline_encoder(config, folder)
    _check_shapes(encoder, family_of(encoder), weights, folder)
    return encoder.to_empty(device="cpu")


def outline_encoder(config: Mapping[str, Any], folder: Path) -> PackedEncoder:
    """The encoder a config.json describes, on the meta device: its shapes and settings, no weights."""
    family = find_family(config, folder)
    try:
        shape = family.read_config(config, read_own_settings(config, "encoder"))
    except InputError as error:
        raise InputError(f"{folder / CONFIG_FILE}: {error}") from error
    with torch.device("meta"):
        return family.encoder_class(shape)


def _check_shapes(encoder: PackedEncoder, family: Family, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Compare without a copy: what ours keeps stacked is compared block by block."""
    given = family.normalise(weights)
    expected = {
        theirs: (block.shape[0] // len(names), *block.shape[1:])
        for name, block in encoder.state_dict().items()
        for names in [family.their_names(name)]
        for theirs in names
    }
    missing = [name for name in expected if name not in given]
    if missing:
        raise InputError(f"{folder} lacks {len(missing)} weights of the model, first '{missing[0]}'")
    for name, shape in expected.items():
        if tuple(given[name].shape) != shape:
            raise InputError(
                f"{folder}: '{name}' has shape {tuple(given[name].shape)}, {CONFIG_FILE} says {shape}; the two do not"
                " belong together"
            )


def load_encoder(folder_or_id: str | Path) -> PackedEncoder:
    folder = resolve_folder(folder_or_id)
    config, weights = read_model_folder(folder)
    encoder = build_encoder(config, folder, weights)
    encoder.load_state_dict(family_of(encoder).from_theirs(weights, encoder.state_dict()))
    return encoder.eval()


def save_encoder(folder: str | Path, encoder: PackedEncoder) -> None:
    weights = family_of(encoder).to_theirs(encoder.state_dict())
    write_model_folder(Path(folder), describe_encoder(encoder, with_head=False), copy_to_cpu(weights))
