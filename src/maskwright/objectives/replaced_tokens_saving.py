"""Save and load replaced-token detection: the encoder as a model of its own, the generator and the heads beside it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from maskwright.errors import InputError
from maskwright.models.encoder import build_encoder, describe_encoder
from maskwright.models.family import State
from maskwright.models.files.model_folder import (
    CONFIG_FILE,
    OWN_KEY,
    copy_to_cpu,
    load_into,
    read_model_folder,
    read_own_settings,
    resolve_folder,
)
from maskwright.models.files.safetensors_file import read_tensors
from maskwright.objectives.replaced_tokens import ReplacedTokenDetection
from maskwright.objectives.snapshot import ModelSnapshot
from maskwright.text.tokenizer.tokenizer import as_tokenizer

OTHERS_FILE = "replaced_tokens.safetensors"
_SETTINGS_KEY = "replaced_tokens"
_ENCODER = "encoder."
_NOT_SETTINGS = ("encoder", "tokenizer")
_NUMBERS = ("vocab_size", "mask_token_id", "generator_layers")
"""Settings whose default does not say that they are numbers."""


def snapshot_replaced_tokens(model: ReplacedTokenDetection, tokenizer: Any = None, wait: bool = True) -> ModelSnapshot:
    """Without `wait` copies from a GPU still run on return."""
    tokenizer = None if tokenizer is None else as_tokenizer(tokenizer)
    config = describe_encoder(model.encoder, with_head=False)
    config[OWN_KEY][_SETTINGS_KEY] = _settings(model)
    if tokenizer is not None:
        config |= {"cls_token_id": tokenizer.cls_token_id, "sep_token_id": tokenizer.sep_token_id}
        config |= {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
    others = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith(_ENCODER)}
    weights = copy_to_cpu(model.encoder.family.to_theirs(model.encoder.state_dict()), wait)
    return ModelSnapshot(config, weights, tokenizer, {OTHERS_FILE: copy_to_cpu(others, wait)})


def load_replaced_tokens(folder_or_id: str | Path) -> ReplacedTokenDetection:
    folder = resolve_folder(folder_or_id)
    config, weights = read_model_folder(folder)
    settings = _read_settings(config, folder)
    model = ReplacedTokenDetection(build_encoder(config, folder, weights), **settings)
    _fill(model, weights, folder)
    return model.eval()


def fill_replaced_tokens(model: ReplacedTokenDetection, folder: Path) -> None:
    """Fill a model of the same shape from a saved one."""
    _fill(model, read_model_folder(folder)[1], folder)


def _fill(model: ReplacedTokenDetection, weights: State, folder: Path) -> None:
    encoder_state = model.encoder.family.from_theirs(weights, list(model.encoder.state_dict()))
    state = {f"{_ENCODER}{name}": tensor for name, tensor in encoder_state.items()}
    load_into(model, state | _read_others(folder), folder)


def _read_others(folder: Path) -> State:
    file = folder / OTHERS_FILE
    if not file.is_file():
        raise InputError(
            f"{folder} has no {OTHERS_FILE}, so it holds no generator; load its encoder with BERT.from_pretrained or"
            " ModernBERT.from_pretrained and wrap it in a new ReplacedTokenDetection"
        )
    return read_tensors(file)


def _settings(model: ReplacedTokenDetection) -> dict[str, Any]:
    """The constructor's arguments, as plain values."""
    return {
        "vocab_size": model.vocab_size,
        "mask_ratio": model.mask_ratio,
        "mask_token_id": model.mask_token_id,
        "special_token_ids": list(model.special_token_ids),
        "generator_size": model.generator_size,
        "generator_layers": model.generator.encoder_layers.config.num_hidden_layers,
        "discriminator_weight": model.part_weights[1],
        "temperature": model.temperature,
        "initializer_range": model.initializer_range,
        "mlm_head_dropout": model.mlm_head_dropout,
        "layer_norm_eps": model.generator.norm.eps,
        "seed": model.seed,
        **model.masker.settings(),
    }


def _read_settings(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Arguments of the constructor; names we do not know are left aside, values of a wrong type refused."""
    known = inspect.signature(ReplacedTokenDetection).parameters
    stored = read_own_settings(config, _SETTINGS_KEY)
    settings = {name: value for name, value in stored.items() if name in known and name not in _NOT_SETTINGS}
    if "vocab_size" not in settings:
        raise InputError(
            f"{folder / CONFIG_FILE} describes no replaced-token detection; load its encoder with BERT.from_pretrained"
            " or ModernBERT.from_pretrained and wrap it in a new ReplacedTokenDetection"
        )
    for name, value in settings.items():
        is_number = isinstance(known[name].default, int | float) or name in _NUMBERS
        if not isinstance(value, (int, float) if is_number else (str, list)) or isinstance(value, bool):
            raise InputError(f"{folder / CONFIG_FILE}: '{name}' is {value!r}, which is no setting of a model")
    return settings
