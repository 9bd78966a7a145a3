"""Masked language models of `transformers`, head included: from their folder to a model of ours, and back."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from maskwright.errors import InputError, InputWarning
from maskwright.models.family import State
from maskwright.models.files.model_folder import WEIGHTS_FILE, load_into
from maskwright.models.transformers_model import TransformersHead, load_transformers_model
from maskwright.text.tokenizer.files import advise_conversion
from maskwright.text.tokenizer.tokenizer import has_tokenizer, load_tokenizer


def load_foreign(
    config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    folder: Path,
    may_lack_head: bool,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """The arguments that make a `MaskedLanguageModel` out of a folder of theirs; `settings` are those it tells of."""
    loaded = load_transformers_model(config, weights, folder)
    if loaded.has_new_head:
        _accept_new_head(folder, may_lack_head)
    guessed = {} if "mask_token_id" in settings else _guess_special_tokens(config, folder)
    parts = {"encoder": loaded.encoder, "mlm_head": loaded.mlm_head, "vocab_size": loaded.vocab_size}
    return {**guessed, **settings, **parts}


def _guess_special_tokens(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    if has_tokenizer(folder):
        tokenizer = load_tokenizer(folder)
        return {"mask_token_id": tokenizer.mask_token_id, "special_token_ids": tokenizer.all_special_ids}
    if isinstance(config.get("mask_token_id"), int):
        return {"mask_token_id": config["mask_token_id"]}
    warnings.warn(
        f"{folder} has no tokenizer.json, so that its mask token is not known and BERT's is taken;"
        f" {advise_conversion(folder)}",
        InputWarning,
        stacklevel=5,
    )
    return {}


def _accept_new_head(folder: Path, may_lack_head: bool) -> None:
    if not may_lack_head:
        raise InputError(
            f"{folder} holds an encoder without a masked-language-model head; train one with model.from={folder}"
        )
    warnings.warn(
        f"{folder} holds an encoder without a prediction head; it gets a new one, which knows nothing yet",
        InputWarning,
        stacklevel=4,
    )


def to_foreign_state(encoder: nn.Module, mlm_head: TransformersHead) -> State:
    """The weights under their names; of tied ones the one that they store."""
    state = _name_weights(encoder, mlm_head)
    tied = {name for name, other in mlm_head.ties.items() if other in state and state.get(name) is state[other]}
    return {name: tensor.detach() for name, tensor in state.items() if name not in tied}


def fill_foreign(encoder: nn.Module, mlm_head: TransformersHead, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Fill a model from what `to_foreign_state` gave."""
    given = dict(weights)
    for name, other in mlm_head.ties.items():
        if name not in given and other in given:
            given[name] = given[other]
    prefix = f"{mlm_head.encoder_name}."
    own = {name.removeprefix(prefix): tensor for name, tensor in given.items() if name.startswith(prefix)}
    load_into(encoder, own, folder / WEIGHTS_FILE)
    load_into(mlm_head.rest, given, folder / WEIGHTS_FILE)


def _name_weights(encoder: nn.Module, mlm_head: TransformersHead) -> State:
    """All weights of both parts under their names, as the parameters they are."""
    own = encoder.state_dict(keep_vars=True)
    return {f"{mlm_head.encoder_name}.{name}": tensor for name, tensor in own.items()} | mlm_head.rest.state_dict(
        keep_vars=True
    )
