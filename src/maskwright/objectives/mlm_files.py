"""The files of a masked language model.

Around an encoder of ours in Hugging Face's layout of its family, around one of transformers as transformers does, and
around one of the user's own under the names that the modules have.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from maskwright.errors import InputError, InputWarning
from maskwright.models.any_encoder import find_stable_names
from maskwright.models.encoder import FAMILIES, PackedEncoder, describe_encoder
from maskwright.models.family import Family, State
from maskwright.models.files.model_folder import (
    OWN_KEY,
    OWN_TYPE_PREFIX,
    find_task_architecture,
    read_config,
    read_shapes,
    warn_of_unused,
)
from maskwright.models.transformers_model import TransformersHead, describe_config, load_transformers_model
from maskwright.objectives.prediction import PredictingModel
from maskwright.objectives.saving import CUSTOM_TYPE, StoredWeight
from maskwright.text.tokenizer.files import advise_conversion
from maskwright.text.tokenizer.tokenizer import has_tokenizer, load_tokenizer

_OUTPUT_WEIGHT, _OUTPUT_BIAS = "mlm_output.weight", "mlm_output.bias"
_BUFFERS = {"embeddings.position_ids", "embeddings.token_type_ids"}
"""Buffers in old files, which are no weights."""


def describe_language_model(model: PredictingModel) -> dict[str, Any]:
    """config.json without what is ours alone."""
    if isinstance(model.encoder, PackedEncoder):
        return _describe_native(model, model.encoder)
    if model.mlm_head is not None:
        return describe_config(model.mlm_head.rest)
    return {"model_type": CUSTOM_TYPE, "encoder_class": type(model.encoder).__name__, OWN_KEY: {}}


def _describe_native(model: PredictingModel, encoder: PackedEncoder) -> dict[str, Any]:
    """The encoder's settings and the head's, under the family's names."""
    family = encoder.family
    head: dict[str, Any] = {"tie_word_embeddings": model.is_tied}
    is_expressible = model.vocab_size == encoder.vocab_size
    if encoder.has_mlm_transform:
        is_expressible &= model.layer_norm_eps == encoder.norm_eps
    if family.head_activation_setting is not None:
        head |= {family.head_activation_setting: model.mlm_head_activation}
    elif encoder.has_mlm_transform:
        is_expressible &= model.mlm_head_activation == encoder.head_activation
    if model.mode == "clm" and family.causal_architecture is not None:
        head |= {"is_decoder": True, "architectures": [family.causal_architecture]}
    else:
        is_expressible &= not model.predicts_next
    return describe_encoder(encoder, with_head=True, is_expressible=is_expressible) | head


def describe_settings(model: PredictingModel) -> dict[str, Any]:
    """The constructor's arguments as plain values; with a head of transformers, only those that still apply."""
    own_head = {} if model.mlm_head is not None else _describe_head(model)
    return {
        **own_head,
        "vocab_size": model.vocab_size,
        "mask_ratio": model.mask_ratio,
        "mask_token_id": model.masker.mask_token_id,
        "special_token_ids": list(model.special_token_ids),
        "mlm_head_dropout": model.mlm_head_dropout,
        "seed": model.seed,
        **model.masker.settings(),
    }


def _describe_head(model: PredictingModel) -> dict[str, Any]:
    return {
        "mlm_head_activation": model.mlm_head_activation,
        "initializer_range": model.initializer_range,
        "layer_norm_eps": model.layer_norm_eps,
    }


def name_weights(model: PredictingModel) -> dict[str, StoredWeight]:
    """Where each weight is stored, by its name in the model; a tied output is the embedding's where they tie it too."""
    ties = True
    if isinstance(model.encoder, PackedEncoder):
        names, ties = _name_native(model, model.encoder), model.encoder.family.ties_output
    elif model.mlm_head is not None:
        return _name_foreign(model.encoder, model.mlm_head)
    else:
        stable = {f"encoder.{name}": f"encoder.{stored}" for name, stored in find_stable_names(model.encoder).items()}
        names = {name: StoredWeight((stable.get(name, name),)) for name in model.state_dict()}
    if model.is_tied and ties:
        names.pop(_OUTPUT_WEIGHT, None)
    return names


def _name_native(model: PredictingModel, encoder: PackedEncoder) -> dict[str, StoredWeight]:
    family = encoder.family
    names = {
        f"encoder.{name}": StoredWeight(tuple(f"{family.prefix}.{theirs}" for theirs in family.their_names(name)))
        for name in encoder.state_dict()
    }
    for ours, theirs in family.head_modules.items():
        for name, _ in getattr(model, ours).named_parameters():
            names[f"{ours}.{name}"] = StoredWeight((f"{theirs}.{name}",))
    # An untied output computes with the bias of its own name; some files of tied ones have it there alone.
    own_bias = _name_output(family, "bias")
    names[_OUTPUT_BIAS] = (
        StoredWeight((family.output_bias,), other_name=own_bias)
        if model.is_tied
        else StoredWeight((own_bias,), other_name=family.output_bias, is_written_twice=True)
    )
    return names


def _name_output(family: Family, kind: str) -> str:
    return f"{family.head_modules['mlm_output']}.{kind}"


def _name_foreign(encoder: nn.Module, mlm_head: TransformersHead) -> dict[str, StoredWeight]:
    """The name under which transformers stores a tied weight."""
    prefix = f"{mlm_head.encoder_name}."
    own = {f"{prefix}{name}": tensor for name, tensor in encoder.state_dict(keep_vars=True).items()}
    state = own | mlm_head.rest.state_dict(keep_vars=True)
    tied = {name for name, other in mlm_head.ties.items() if other in state and state.get(name) is state[other]}
    return {
        f"encoder.{name.removeprefix(prefix)}" if name in own else f"mlm_head.rest.{name}": StoredWeight((name,))
        for name in state
        if name not in tied
    }


def list_head_weights(model: PredictingModel) -> set[str]:
    """The names in the model of all weights outside of the encoder."""
    return {name for name in model.state_dict() if not name.startswith("encoder.")}


def lacks_head(folder: Path) -> bool:
    """Whether a folder of a native family holds only an encoder; other folders are not checked."""
    encoder_class = FAMILIES.get(str(read_config(folder).get("model_type")).removeprefix(OWN_TYPE_PREFIX))
    return encoder_class is not None and not _has_head(encoder_class.family, read_shapes(folder))


def _has_head(family: Family, weights: Mapping[str, Any]) -> bool:
    return f"{next(iter(family.head_modules.values()))}.weight" in weights


def check_head(encoder_class: type[PackedEncoder], weights: State, folder: Path, may_lack_head: bool) -> bool:
    """Whether the weights include a prediction head; if not, an `InputError`, or a warning with `may_lack_head`."""
    if _has_head(encoder_class.family, weights):
        return True
    if may_lack_head:
        _warn_of_new_head(folder)
        return False
    architecture = find_task_architecture(read_config(folder))
    if architecture is not None:
        raise InputError(
            f"{folder} holds {architecture}, fine-tuned for a task and without a masked-language-model head; ask it"
            " with maskwright predict (classify, ner, qa), or give the model it was made from"
        )
    raise InputError(
        f"{folder} holds an encoder without a masked-language-model head; train one with maskwright adapt, or load"
        f" it with {encoder_class.__name__}.from_pretrained and wrap it in a new MaskedLanguageModel"
    )


def _warn_of_new_head(folder: Path) -> None:
    warnings.warn(
        f"{folder} holds an encoder without a prediction head; it gets a new one, which knows nothing yet",
        InputWarning,
        stacklevel=4,
    )


def warn_of_strangers(
    model: PredictingModel, encoder: PackedEncoder, weights: State, used_elsewhere: Iterable[str], folder: Path
) -> None:
    """Warn of modules and weights that a masked language model does not have."""
    family = encoder.family
    stored = _name_native(model, encoder).values()
    names = [name for one in stored for name in (*one.names, one.other_name) if name is not None]
    used = {family.normalise_name(name) for name in (*names, _name_output(family, "weight"))}
    elsewhere = {name.removeprefix(f"{family.prefix}.") for name in used_elsewhere}
    modules = {name.rpartition(".")[0] for name in used}
    unused = {name: name.rpartition(".")[0] for name in set(family.normalise(weights)) - used - _BUFFERS}
    warn_of_unused(
        {name if module in modules else module for name, module in unused.items() if module not in elsewhere}, folder
    )


def guess_settings(folder: Path, config: Mapping[str, Any], encoder: PackedEncoder) -> dict[str, Any]:
    """Settings of a foreign model, from its configuration and its tokenizer's special tokens."""
    settings = {
        "vocab_size": encoder.vocab_size,
        "mlm_head_activation": encoder.head_activation,
        "layer_norm_eps": encoder.norm_eps,
    }
    activation_setting = encoder.family.head_activation_setting
    if activation_setting is not None:
        settings["mlm_head_activation"] = str(config.get(activation_setting, encoder.head_activation))
    if has_tokenizer(folder):
        tokenizer = load_tokenizer(folder)
        settings |= {"mask_token_id": tokenizer.mask_token_id, "special_token_ids": tokenizer.all_special_ids}
    return settings


def load_foreign(
    config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    folder: Path,
    may_lack_head: bool,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """The arguments of a `MaskedLanguageModel` for a folder of transformers, with its own head.

    `settings` are read from the folder; a missing head is initialised anew with `may_lack_head`.
    """
    loaded = load_transformers_model(config, weights, folder)
    if loaded.has_new_head:
        if not may_lack_head:
            raise InputError(
                f"{folder} holds an encoder without a masked-language-model head; train one with model.from={folder}"
            )
        _warn_of_new_head(folder)
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
