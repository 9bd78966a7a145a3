"""Save and load a whole masked language model, its prediction head included."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from maskwright.errors import InputError, InputWarning
from maskwright.models import FAMILIES
from maskwright.models.any_encoder import find_stable_names
from maskwright.models.encoder import PackedEncoder, build_encoder, describe_encoder, find_encoder_class
from maskwright.models.family import Family, State
from maskwright.models.files.model_folder import (
    CONFIG_FILE,
    OWN_KEY,
    OWN_TYPE_PREFIX,
    WEIGHTS_FILE,
    copy_to_cpu,
    find_task_architecture,
    load_into,
    read_config,
    read_model_folder,
    read_own_settings,
    read_shapes,
    resolve_folder,
    warn_of_unused,
)
from maskwright.models.transformers_model import describe_config, is_foreign
from maskwright.objectives.foreign_lm import fill_foreign, load_foreign, to_foreign_state
from maskwright.objectives.kinds import Build, describe_objective, find_objective
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.objectives.snapshot import ModelSnapshot
from maskwright.text.tokenizer.tokenizer import as_tokenizer, has_tokenizer, load_tokenizer

CUSTOM_TYPE = "maskwright_custom"
_OUTPUT_WEIGHT = "mlm_output.weight"
_BUFFERS = {"embeddings.position_ids", "embeddings.token_type_ids"}
"""In old files; they are no weights."""
_NOT_SETTINGS = ("encoder", "mlm_head", "tie_word_embeddings", "tokenizer")
"""Arguments of the constructor that are made of weights, or tell what other settings do."""


def snapshot_masked_lm(model: MaskedLanguageModel, tokenizer: Any = None, wait: bool = True) -> ModelSnapshot:
    """Without `wait` copies from a GPU still run on return."""
    tokenizer = None if tokenizer is None else as_tokenizer(tokenizer)
    if isinstance(model.encoder, PackedEncoder):
        config = _describe(model, model.encoder)
        weights = _to_theirs(model, model.encoder)
    elif model.mlm_head is not None:
        config = describe_config(model.mlm_head.rest)
        weights = to_foreign_state(model.encoder, model.mlm_head)
    else:
        config = {"model_type": CUSTOM_TYPE, "encoder_class": type(model.encoder).__name__, OWN_KEY: {}}
        names = _custom_names(model)
        weights = {names[name]: tensor for name, tensor in model.state_dict().items() if not _is_shared(model, name)}
    config[OWN_KEY] |= {"masked_lm": _settings(model), "objective": describe_objective(model)}
    if tokenizer is not None and model.mlm_head is None:
        config |= {"cls_token_id": tokenizer.cls_token_id, "sep_token_id": tokenizer.sep_token_id}
        config |= {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
    return ModelSnapshot(config, copy_to_cpu(weights, wait), tokenizer)


def load_masked_lm(
    folder_or_id: str | Path,
    encoder: nn.Module | None = None,
    build: Build | None = None,
    may_lack_head: bool = False,
    used_elsewhere: Iterable[str] = (),
) -> MaskedLanguageModel:
    """`build` makes the model out of an encoder and settings; unset, it becomes what it was trained as.

    With `may_lack_head` an encoder alone gets a new prediction head, and a warning says so. Modules that are
    `used_elsewhere` are left aside without a word.
    """
    folder = resolve_folder(folder_or_id)
    config, weights = read_model_folder(folder)
    settings = _read_settings(config, folder)
    build = build or find_objective(config)
    config.pop("is_decoder", None)  # said by the class that is built
    if is_foreign(config):
        return build(**load_foreign(config, weights, folder, may_lack_head, settings)).eval()
    if config.get("model_type") != CUSTOM_TYPE:
        _check_has_head(find_encoder_class(config, folder), weights, folder, may_lack_head)
        native = build_encoder(config, folder, weights)
        settings = {**_guess_settings(folder, config, native), **settings}
        is_tied = config.get("tie_word_embeddings", native.family.ties_output)
        if not isinstance(is_tied, bool):
            raise InputError(f"{folder / CONFIG_FILE}: 'tie_word_embeddings' is {is_tied!r}; expected true or false")
        model = build(native, tie_word_embeddings=is_tied, **settings)
    elif encoder is not None:
        model = build(encoder, tie_word_embeddings=_OUTPUT_WEIGHT not in weights, **settings)
    else:
        raise InputError(
            f"{folder / CONFIG_FILE} is a model around a {config.get('encoder_class')}; build that encoder and"
            " pass it as from_pretrained(folder, encoder=...)"
        )
    _fill(model, weights, folder, used_elsewhere)
    return model.eval()


def fill_masked_lm(model: MaskedLanguageModel, folder: Path, used_elsewhere: Iterable[str] = ()) -> None:
    """Fill a model of the same shape from a saved one."""
    _fill(model, read_model_folder(folder)[1], folder, used_elsewhere)


def _fill(model: MaskedLanguageModel, weights: State, folder: Path, used_elsewhere: Iterable[str]) -> None:
    if model.mlm_head is not None:
        fill_foreign(model.encoder, model.mlm_head, weights, folder)
        return
    if isinstance(model.encoder, PackedEncoder):
        state = _from_theirs(model, model.encoder, weights)
        warn_of_unused(_find_unused(model, model.encoder, weights, used_elsewhere), folder)
    else:
        state = {ours: weights[stored] for ours, stored in _custom_names(model).items() if stored in weights}
    if model.is_tied:  # the embedding's own tensor, filled under the embedding's name
        state[_OUTPUT_WEIGHT] = model.mlm_output.weight.detach()
    load_into(model, state, folder / WEIGHTS_FILE)


def _custom_names(model: MaskedLanguageModel) -> dict[str, str]:
    """Names in the file of a model around an encoder of the user's own, by those in its state."""
    stable = {f"encoder.{name}": f"encoder.{stored}" for name, stored in find_stable_names(model.encoder).items()}
    return {name: stable.get(name, name) for name in model.state_dict()}


def _from_theirs(model: MaskedLanguageModel, encoder: PackedEncoder, weights: State) -> State:
    family = encoder.family
    encoder_state = family.from_theirs(weights, encoder.state_dict())
    state = {f"encoder.{name}": tensor for name, tensor in encoder_state.items()}
    given = family.normalise(weights)
    names = _head_names(model, family)
    if not _has_head(family, given):
        return state | {name: tensor for name, tensor in model.state_dict().items() if name in names}
    # An untied output computes with the bias of its own name; some files of tied ones have it there alone.
    if not model.is_tied or family.output_bias not in given:
        names["mlm_output.bias"] = _decoder_bias(family)
    if names["mlm_output.bias"] not in given:
        names["mlm_output.bias"] = family.output_bias
    return state | {ours: given[name] for ours, name in names.items() if name in given}


def _find_unused(
    model: MaskedLanguageModel, encoder: PackedEncoder, weights: State, used_elsewhere: Iterable[str]
) -> set[str]:
    """Modules, or single weights of those that are used, without a place in a masked language model."""
    family = encoder.family
    used = {theirs for name in encoder.state_dict() for theirs in family.their_names(name)}
    used |= {*_head_names(model, family).values(), f"{family.head_modules['mlm_output']}.weight", _decoder_bias(family)}
    elsewhere = {name.removeprefix(f"{family.prefix}.") for name in used_elsewhere}
    modules = {name.rpartition(".")[0] for name in used}
    unused = {name: name.rpartition(".")[0] for name in set(family.normalise(weights)) - used - _BUFFERS}
    return {name if module in modules else module for name, module in unused.items() if module not in elsewhere}


def _describe(model: MaskedLanguageModel, encoder: PackedEncoder) -> dict[str, Any]:
    """config.json, with what the head adds to the encoder's under the family's names."""
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


def _to_theirs(model: MaskedLanguageModel, encoder: PackedEncoder) -> State:
    family = encoder.family
    weights = {f"{family.prefix}.{name}": value for name, value in family.to_theirs(encoder.state_dict()).items()}
    for ours, theirs in _head_names(model, family).items():
        weights[theirs] = model.state_dict()[ours]
    if not model.is_tied:  # an untied output may carry its bias under the output's own name as well
        weights[_decoder_bias(family)] = model.mlm_output.bias
    return weights


def _has_head(family: Family, weights: Mapping[str, Any]) -> bool:
    return f"{next(iter(family.head_modules.values()))}.weight" in weights


def lacks_head(folder: Path) -> bool:
    """Whether a folder of a native family holds an encoder alone; others are not looked into."""
    encoder_class = FAMILIES.get(str(read_config(folder).get("model_type")).removeprefix(OWN_TYPE_PREFIX))
    return encoder_class is not None and not _has_head(encoder_class.family, read_shapes(folder))


def _check_has_head(encoder_class: type[PackedEncoder], weights: State, folder: Path, may_lack_head: bool) -> None:
    if _has_head(encoder_class.family, weights):
        return
    if not may_lack_head:
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
    warnings.warn(
        f"{folder} holds an encoder without a prediction head; it gets a new one, which knows nothing yet",
        InputWarning,
        stacklevel=3,
    )


def _decoder_bias(family: Family) -> str:
    return f"{family.head_modules['mlm_output']}.bias"


def _head_names(model: MaskedLanguageModel, family: Family) -> dict[str, str]:
    """Our names of the head's weights to theirs; a tied output weight is the embedding's where they tie it too."""
    names = {}
    for ours, theirs in family.head_modules.items():
        for name, _ in getattr(model, ours).named_parameters():
            if not (family.ties_output and _is_shared(model, f"{ours}.{name}")):
                names[f"{ours}.{name}"] = f"{theirs}.{name}"
    names["mlm_output.bias"] = family.output_bias
    return names


def _is_shared(model: MaskedLanguageModel, name: str) -> bool:
    return model.is_tied and name == _OUTPUT_WEIGHT


def _settings(model: MaskedLanguageModel) -> dict[str, Any]:
    """The constructor's arguments, as plain values; of a head that is not ours, those that still count."""
    own_head = {} if model.mlm_head is not None else _head_settings(model)
    return {
        **own_head,
        "vocab_size": model.vocab_size,
        "mask_ratio": model.mask_ratio,
        "mask_token_id": model.mask_token_id,
        "special_token_ids": list(model.special_token_ids),
        "mlm_head_dropout": model.mlm_head_dropout,
        "seed": model.seed,
        **model.masker.settings(),
    }


def _head_settings(model: MaskedLanguageModel) -> dict[str, Any]:
    return {
        "mlm_head_activation": model.mlm_head_activation,
        "initializer_range": model.initializer_range,
        "layer_norm_eps": model.layer_norm_eps,
    }


def _guess_settings(folder: Path, config: Mapping[str, Any], encoder: PackedEncoder) -> dict[str, Any]:
    """Settings of a model that others made: its own configuration, and the special tokens of its tokenizer."""
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


def _read_settings(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Arguments of the constructor; names we do not know are left aside, values of a wrong type refused."""
    parameters = inspect.signature(MaskedLanguageModel).parameters
    defaults = {name: one for name, one in parameters.items() if name not in _NOT_SETTINGS}
    settings = {name: value for name, value in read_own_settings(config, "masked_lm").items() if name in defaults}
    for name, value in settings.items():
        if not _is_setting(name, value, defaults[name].default):
            raise InputError(f"{folder / CONFIG_FILE}: '{name}' is {value!r}, which is no setting of a model")
    return settings


def _is_setting(name: str, value: Any, default: Any) -> bool:
    if name == "special_token_ids":
        return isinstance(value, list) and all(type(item) is int for item in value)
    if name in ("vocab_size", "mask_token_id") or type(default) is int:
        return type(value) is int
    return type(value) in ((int, float) if isinstance(default, float) else (str,))
