"""Save and load a whole masked language model, its prediction head included."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from maskwright.errors import InputError
from maskwright.models.encoder import PackedEncoder
from maskwright.models.families import Family, State, family_of
from maskwright.models.pretrained import (
    CONFIG_FILE,
    OWN_KEY,
    WEIGHTS_FILE,
    build_encoder,
    copy_to_cpu,
    describe_encoder,
    find_family,
    load_into,
    read_model_folder,
    read_own_settings,
    resolve_folder,
)
from maskwright.objectives.kinds import Build, describe_objective, find_objective
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.objectives.snapshot import ModelSnapshot
from maskwright.text.tokenizer import as_tokenizer, has_tokenizer, load_tokenizer

CUSTOM_TYPE = "maskwright_custom"
_OUTPUT_WEIGHT = "mlm_output.weight"


def snapshot_masked_lm(model: MaskedLanguageModel, tokenizer: Any = None, wait: bool = True) -> ModelSnapshot:
    """Without `wait` copies from a GPU still run on return."""
    tokenizer = None if tokenizer is None else as_tokenizer(tokenizer)
    if isinstance(model.encoder, PackedEncoder):
        config = _describe(model, model.encoder)
        weights = _to_theirs(model, model.encoder)
    else:
        config = {"model_type": CUSTOM_TYPE, "encoder_class": type(model.encoder).__name__, OWN_KEY: {}}
        weights = {name: tensor for name, tensor in model.state_dict().items() if not _is_shared(model, name)}
    config[OWN_KEY] |= {"masked_lm": _settings(model), "objective": describe_objective(model)}
    if tokenizer is not None:
        config |= {"cls_token_id": tokenizer.cls_token_id, "sep_token_id": tokenizer.sep_token_id}
        config |= {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
    return ModelSnapshot(config, copy_to_cpu(weights, wait), tokenizer)


def load_masked_lm(
    folder_or_id: str | Path,
    encoder: nn.Module | None = None,
    build: Build | None = None,
) -> MaskedLanguageModel:
    """`build` makes the model out of an encoder and settings; unset, it becomes what it was trained as."""
    folder = resolve_folder(folder_or_id)
    config, weights = read_model_folder(folder)
    settings = _read_settings(config, folder)
    build = build or find_objective(config)
    config["is_decoder"] = False  # said by the class that is built
    if config.get("model_type") != CUSTOM_TYPE:
        _check_has_head(find_family(config, folder), weights, folder)
        settings = {**_guess_settings(folder, config), **settings}
        is_tied = config.get("tie_word_embeddings", True)
        model = build(build_encoder(config, folder), tie_word_embeddings=is_tied, **settings)
    elif encoder is not None:
        model = build(encoder, tie_word_embeddings=_OUTPUT_WEIGHT not in weights, **settings)
    else:
        raise InputError(
            f"{folder / CONFIG_FILE} is a model around a {config.get('encoder_class')}; build that encoder and"
            " pass it as from_pretrained(folder, encoder=...)"
        )
    _fill(model, weights, folder)
    return model.eval()


def fill_masked_lm(model: MaskedLanguageModel, folder: Path) -> None:
    """Fill a model of the same shape from a saved one."""
    _fill(model, read_model_folder(folder)[1], folder)


def _fill(model: MaskedLanguageModel, weights: State, folder: Path) -> None:
    if isinstance(model.encoder, PackedEncoder):
        family = family_of(model.encoder)
        encoder_state = family.from_theirs(weights, list(model.encoder.state_dict()))
        state = {f"encoder.{name}": tensor for name, tensor in encoder_state.items()}
        state |= {ours: weights[name] for ours, name in _head_names(model, family).items() if name in weights}
    else:
        state = dict(weights)
    if model.is_tied:  # the embedding's own tensor, filled under the embedding's name
        state[_OUTPUT_WEIGHT] = model.mlm_output.weight.detach()
    load_into(model, state, folder / WEIGHTS_FILE)


def _describe(model: MaskedLanguageModel, encoder: PackedEncoder) -> dict[str, Any]:
    """config.json, with what the head adds to the encoder's under the family's names."""
    config = encoder.config
    head: dict[str, Any] = {"tie_word_embeddings": model.is_tied}
    is_expressible = model.vocab_size == encoder.vocab_size
    if family_of(encoder).model_type == "modernbert":
        head |= {"classifier_bias": config.norm_bias, "classifier_activation": model.mlm_head_activation}
        is_expressible &= model.mlm_norm.eps == config.norm_eps
    else:
        is_expressible &= model.mlm_norm.eps == config.layer_norm_eps
        is_expressible &= model.mlm_head_activation == config.hidden_act
    if model.mode == "clm" and family_of(encoder).model_type == "bert":
        head |= {"is_decoder": True, "architectures": ["BertLMHeadModel"]}
    else:
        is_expressible &= not model.predicts_next
    return describe_encoder(encoder, with_head=True, is_expressible=is_expressible) | head


def _to_theirs(model: MaskedLanguageModel, encoder: PackedEncoder) -> State:
    family = family_of(encoder)
    weights = {f"{family.prefix}.{name}": value for name, value in family.to_theirs(encoder.state_dict()).items()}
    for ours, theirs in _head_names(model, family).items():
        weights[theirs] = model.state_dict()[ours]
    if not model.is_tied:  # an untied output may carry its bias under the output's own name as well
        weights[f"{family.head_modules['mlm_output']}.bias"] = model.mlm_output.bias
    return weights


def _check_has_head(family: Family, weights: State, folder: Path) -> None:
    if f"{family.head_modules['mlm_dense']}.weight" not in weights:
        raise InputError(
            f"{folder / WEIGHTS_FILE} holds an encoder without a masked-language-model head; load it with"
            f" {family.encoder_class.__name__}.from_pretrained and wrap it in a new MaskedLanguageModel"
        )


def _head_names(model: MaskedLanguageModel, family: Family) -> dict[str, str]:
    """Our names of the head's own weights to theirs; a tied output weight is the embedding's."""
    names = {}
    for ours, theirs in family.head_modules.items():
        for name, _ in getattr(model, ours).named_parameters():
            if not _is_shared(model, f"{ours}.{name}"):
                names[f"{ours}.{name}"] = f"{theirs}.{name}"
    names["mlm_output.bias"] = family.output_bias
    return names


def _is_shared(model: MaskedLanguageModel, name: str) -> bool:
    return model.is_tied and name == _OUTPUT_WEIGHT


def _settings(model: MaskedLanguageModel) -> dict[str, Any]:
    """The constructor's arguments, as plain values."""
    return {
        "vocab_size": model.vocab_size,
        "mask_ratio": model.mask_ratio,
        "mask_token_id": model.mask_token_id,
        "special_token_ids": list(model.special_token_ids),
        "mlm_head_activation": model.mlm_head_activation,
        "initializer_range": model.initializer_range,
        "mlm_head_dropout": model.mlm_head_dropout,
        "layer_norm_eps": model.mlm_norm.eps,
        "seed": model.seed,
        **model.masker.settings(),
    }


def _guess_settings(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a model that others made: its own configuration, and the special tokens of its tokenizer."""
    settings = {
        "vocab_size": config["vocab_size"],
        "mlm_head_activation": config.get("classifier_activation", config.get("hidden_act", "gelu")),
        "layer_norm_eps": config.get("norm_eps", config.get("layer_norm_eps", 1e-12)),
    }
    if has_tokenizer(folder):
        tokenizer = load_tokenizer(folder)
        settings |= {"mask_token_id": tokenizer.mask_token_id, "special_token_ids": tokenizer.all_special_ids}
    return settings


def _read_settings(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Arguments of the constructor; names we do not know are left aside, values of a wrong type refused."""
    defaults = inspect.signature(MaskedLanguageModel).parameters
    settings = {name: value for name, value in read_own_settings(config, "masked_lm").items() if name in defaults}
    for name, value in settings.items():
        default = defaults[name].default
        expected = (int, float) if isinstance(default, int | float) or name == "vocab_size" else (str, list)
        if not isinstance(value, expected) or isinstance(value, bool):
            raise InputError(f"{folder / CONFIG_FILE}: '{name}' is {value!r}, which is no setting of a model")
    return settings
