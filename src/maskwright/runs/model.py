"""Build the model of a configuration, for a tokenizer and a row length."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import nn

from maskwright.config import Config, change_config
from maskwright.errors import InputError, InputWarning
from maskwright.masking.strategies import build_masker
from maskwright.models.any_encoder import find_max_length
from maskwright.models.encoder import FAMILIES, PackedEncoder, outline_encoder
from maskwright.models.files.model_folder import read_config, resolve_folder
from maskwright.models.transformers_model import is_foreign
from maskwright.objectives.distillation import Student
from maskwright.objectives.masked_lm import DiffusionLanguageModel, MaskedLanguageModel, load_masked_lm
from maskwright.objectives.replaced_tokens import ReplacedTokenDetection
from maskwright.objectives.resizing import extend_vocabulary, resize_vocabulary
from maskwright.objectives.saving import CUSTOM_TYPE
from maskwright.objectives.sentence_pairs import continue_with_pairs
from maskwright.objectives.token_detector import OTHERS_FILE
from maskwright.recipes import read_recipe
from maskwright.runs.objective import check_objective, choose_kind
from maskwright.runs.students import build_student, load_teacher
from maskwright.runs.texts import Say
from maskwright.suggestions import suggest_near
from maskwright.text.tokenizer.tokenizer import Tokenizer, has_tokenizer, load_tokenizer
from maskwright.untrusted import shorten

TrainedModel = MaskedLanguageModel | ReplacedTokenDetection
_MAX_SPARE_TOKENS = 128


def build_model(config: Config, tokenizer: Tokenizer) -> TrainedModel:
    """A new model, or the one to continue from with this run's masking and head dropout."""
    check_objective(config)
    torch.manual_seed(config.run.seed)
    model = _build_model(config, tokenizer)
    model.masker = build_masker(
        model.vocab_size, tokenizer.mask_token_id, tokenizer.all_special_ids, **_masking_options(config)
    )
    return model


def _build_model(config: Config, tokenizer: Tokenizer) -> TrainedModel:
    if config.model.from_ is not None:
        return _continue_model(config, tokenizer, config.model.from_)
    if config.distillation.teacher is not None:
        return _build_student(config, tokenizer, config.distillation.teacher)
    if config.model.freeze_encoder:
        raise InputError("model.freeze_encoder keeps an encoder as it is; give the trained one as model.from")
    if config.model.rope_ramp_share:
        raise InputError("model.rope_ramp_share is for a trained model; give it as model.from")
    encoder = _build_encoder(config, tokenizer)
    settings: dict[str, Any] = {
        "vocab_size": tokenizer.vocab_size,
        "mask_ratio": config.masking.ratio,
        "mask_token_id": tokenizer.mask_token_id,
        "special_token_ids": tokenizer.all_special_ids,
        "initializer_range": encoder.config.initializer_range,
        "mlm_head_dropout": config.model.mlm_head_dropout,
        "layer_norm_eps": encoder.norm_eps,
        "seed": config.run.seed,
    }
    if config.training.mode == "rtd":
        return ReplacedTokenDetection(
            encoder,
            generator_size=config.replaced_tokens.generator_size,
            discriminator_weight=config.replaced_tokens.discriminator_weight,
            temperature=config.replaced_tokens.temperature,
            **settings,
        )
    return choose_kind(config)(encoder, mlm_head_activation=config.model.mlm_head_activation, **settings)


def _build_student(config: Config, tokenizer: Tokenizer, teacher_name: str) -> MaskedLanguageModel:
    teacher = load_teacher(config)
    student = build_student(config, teacher, {"special_token_ids": tokenizer.all_special_ids})
    _check_fits(teacher, config, tokenizer, teacher_name)
    return student


def fit_row_length(config: Config, say: Say, may_change_given: bool = False) -> Config:
    """Lower `data.max_length` to the limit of the model to continue from, or of the teacher, and say so.

    A value set by the user is not changed, so `build_model` refuses it, unless `may_change_given`.
    """
    source, length = config.model.from_ or config.distillation.teacher, config.data.max_length
    _find_encoder_class(config.model.family)  # a mistyped one is said before any text is read
    is_given = "max_length" in config.data.model_fields_set and not may_change_given
    if source is None or is_given or config.model.max_position_embeddings is not None:
        return config
    limit = _read_max_length(source)
    if limit is None or length <= limit:
        return config
    say(f"data.max_length is {limit} instead of {length}: {source} takes no more tokens")
    return change_config(config, {"data": {"max_length": limit}})


def _read_max_length(source: str) -> int | None:
    """The longest input of a saved model, without its weights where its family is ours; None where it does not say."""
    folder = resolve_folder(source)
    config = read_config(folder)
    if config.get("model_type") == CUSTOM_TYPE:
        return None
    if not is_foreign(config):
        return outline_encoder(config, folder).max_length
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)  # the run itself says them
        return find_max_length(load_masked_lm(folder, may_lack_head=True).encoder)


def _continue_model(config: Config, tokenizer: Tokenizer, source: str) -> TrainedModel:
    model = _load_to_continue(config, tokenizer, source)
    changes = _find_other_shape(config, model.encoder)
    stretch = {name: changes.pop(name) for name in STRETCHING_SETTINGS if name in changes}
    for name in changes:
        if config.preset is not None and name in read_recipe(config.preset).get("model", {}):
            raise InputError(
                f"model.from={source} brings its own shape, and preset {config.preset} sets model.{name}; add"
                " preset=domain_adaptation, which leaves the shape alone"
            )
        raise InputError(f"model.from={source} brings its own shape; remove model.{name}")
    stretch_positions(model, stretch, source, config.model.rope_ramp_share)
    if "max_position_embeddings" in stretch:
        tokenizer.model_max_length = None  # it was that of the old positions
    if config.model.freeze_encoder:
        model.encoder.requires_grad_(False)
    _check_fits(model, config, tokenizer, source)
    if config.distillation.teacher is not None:
        assert isinstance(model, Student)
        _check_fits(model.teacher, config, tokenizer, config.distillation.teacher)
    if not isinstance(model, DiffusionLanguageModel):
        model.mask_ratio = config.masking.ratio
    model.mlm_head_dropout = config.model.mlm_head_dropout
    model.seed = config.run.seed
    model.special_token_ids = tuple(tokenizer.all_special_ids)
    return model


def _check_fits(model: TrainedModel, config: Config, tokenizer: Tokenizer, source: str) -> None:
    """Refuse a tokenizer or rows that are not of a saved model."""
    check_vocabulary(model, tokenizer)
    _check_same_words(tokenizer, source)
    limit = find_max_length(model.encoder)
    if limit is not None and config.data.max_length > limit:
        raise InputError(
            f"data.max_length is {config.data.max_length}, {source} takes {limit} tokens; lower it:"
            f" data.max_length={limit}"
        )


def _find_other_shape(config: Config, encoder: nn.Module) -> dict[str, Any]:
    """Shape settings of the configuration that differ from the encoder's."""
    own = getattr(encoder, "config", None)
    names = (encoder.family.run_settings if isinstance(encoder, PackedEncoder) else None) or {}
    return {
        name: value
        for name, value in config.model.shape_overrides().items()
        if any(getattr(own, its_name, None) != value for its_name in names.get(name, (name,)))
    }


def _load_to_continue(config: Config, tokenizer: Tokenizer, source: str) -> TrainedModel:
    is_more_than_masking = config.training.mode == "rtd" or config.pairs.task is not None
    if is_more_than_masking and is_foreign(read_config(resolve_folder(source))):
        raise InputError(
            f"{source} is a model of transformers, which learns by masking alone; set training.mode=mlm and no"
            " pairs.task"
        )
    if config.training.mode == "rtd":
        return _continue_replaced_tokens(config, source)
    if config.pairs.task is not None:
        return continue_with_pairs(source, config.pairs.weight)
    model = load_masked_lm(source, build=choose_kind(config), may_lack_head=True)
    own = _find_tokenizer(source)
    if own is not None and own.backend.get_vocab().items() < tokenizer.backend.get_vocab().items():
        extend_vocabulary(model, own, tokenizer)
    if tokenizer.added_roles and 0 < tokenizer.vocab_size - model.vocab_size <= len(tokenizer.added_roles):
        resize_vocabulary(
            model,
            tokenizer.vocab_size,
            mask_token_id=tokenizer.mask_token_id,
            special_token_ids=tokenizer.all_special_ids,
        )
    return model


def _masking_options(config: Config) -> dict[str, Any]:
    """Options of the masker; the ratio is separate, as it may change during the run."""
    masking = config.masking
    return {
        "strategy": masking.strategy,
        "selection": masking.selection,
        "random_token_ratio": masking.random_token_ratio,
        "unchanged_ratio": masking.unchanged_ratio,
        "span_p": masking.span_p,
        "span_max_words": masking.span_max_words,
        "exponent": masking.exponent,
        "update_every_steps": masking.update_every_steps,
        "loss_decay": masking.loss_decay,
    }


def _continue_replaced_tokens(config: Config, source: str) -> ReplacedTokenDetection:
    settings = config.replaced_tokens
    model = ReplacedTokenDetection.from_pretrained(source)
    if model.generator_size != settings.generator_size:
        raise InputError(
            f"{source} has a generator of size {model.generator_size}, replaced_tokens.generator_size is"
            f" {settings.generator_size}; set it to {model.generator_size}"
        )
    model.part_weights = (1.0, settings.discriminator_weight)
    model.temperature = settings.temperature
    return model


def load_model(name: str, needs_head: bool = True) -> tuple[MaskedLanguageModel, Tokenizer]:
    """A run, a checkpoint, a model folder or a hub id, with its tokenizer.

    Without `needs_head` an encoder alone is fine: its prediction head is arbitrary.
    """
    folder = resolve_folder(name)
    if needs_head and (folder / OTHERS_FILE).is_file():
        raise InputError(
            f"{name} was trained with training.mode=rtd: it finds replaced tokens and predicts none; measure it with"
            " eval embeddings or eval glue, fine-tune it, or export it"
        )
    with warnings.catch_warnings():
        if not needs_head:
            warnings.filterwarnings("ignore", "(?s).*without a prediction head", InputWarning)
        model, tokenizer = load_masked_lm(folder, may_lack_head=not needs_head), load_tokenizer(folder)
    check_vocabulary(model, tokenizer)
    return model, tokenizer


def check_vocabulary(model: TrainedModel, tokenizer: Tokenizer) -> None:
    """Refuse the tokenizer of another model; a few spare rows are allowed, as many models round their vocabulary up."""
    if not 0 <= model.vocab_size - tokenizer.vocab_size <= _MAX_SPARE_TOKENS:
        raise InputError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, the model {model.vocab_size}; use the model's tokenizer"
        )
    if tokenizer.mask_token_id != model.mask_token_id:
        raise InputError(
            f"the tokenizer's mask token is {tokenizer.mask_token_id}, the model's {model.mask_token_id};"
            " use the model's tokenizer"
        )
    strangers = set(model.special_token_ids) - set(tokenizer.all_special_ids)
    if strangers:
        raise InputError(
            f"the model's special tokens {sorted(strangers)} are ordinary ones in the tokenizer, whose own are"
            f" {tokenizer.all_special_ids}; use the model's tokenizer"
        )


def _check_same_words(tokenizer: Tokenizer, source: str) -> None:
    """Refuse a tokenizer of the same size with other tokens."""
    own_tokenizer = _find_tokenizer(source)
    if own_tokenizer is None:
        return
    own, given = own_tokenizer.backend.get_vocab(), tokenizer.backend.get_vocab()
    differing = [token for token, token_id in own.items() if given.get(token) != token_id]
    if differing:
        first = differing[0]
        raise InputError(
            f"'{first}' is token {given.get(first)} of the tokenizer and {own[first]} of the one of {source}, and"
            f" {len(differing) - 1} others differ too; use the model's tokenizer"
        )


def _find_tokenizer(source: str) -> Tokenizer | None:
    folder = resolve_folder(source)
    return load_tokenizer(folder) if has_tokenizer(folder) else None


def _build_encoder(config: Config, tokenizer: Tokenizer) -> PackedEncoder:
    overrides: dict[str, Any] = {
        "vocab_size": tokenizer.vocab_size,
        "pad_token_id": tokenizer.pad_token_id,
        "max_position_embeddings": config.data.max_length,
        **config.model.shape_overrides(),
    }
    if overrides["max_position_embeddings"] < config.data.max_length:
        raise InputError(
            f"model.max_position_embeddings is {overrides['max_position_embeddings']}, data.max_length is"
            f" {config.data.max_length}; the model must hold a whole row"
        )
    encoder_class = _find_encoder_class(config.model.family)
    names = encoder_class.family.run_settings or {}
    for name in _find_ignored(config, encoder_class):
        del overrides[name]
    named = {new: value for name, value in overrides.items() for new in names.get(name, (name,))}
    return encoder_class.from_variant(config.model.variant, **named)


def _find_ignored(config: Config, encoder_class: type[PackedEncoder]) -> list[str]:
    """Settings of a recipe for another family that this family does not have; those that the user set are refused."""
    recipe = {} if config.preset is None else read_recipe(config.preset).get("model", {})
    names = encoder_class.family.run_settings or {}
    known = {field.name for field in fields(encoder_class.config_class)}
    given = config.model.shape_overrides()
    from_recipe = [name for name, value in given.items() if recipe.get(name) == value]
    ignored = [name for name in from_recipe if not known.issuperset(names.get(name, (name,)))]
    if ignored:
        listed = ", ".join(f"model.{name}" for name in ignored)
        family = recipe.get("family", "bert")
        message = f"recipe {config.preset} is for {family}; {config.model.family} ignores its {listed}"
        warnings.warn(message, InputWarning, stacklevel=4)
    return ignored


def _find_encoder_class(family: str) -> type[PackedEncoder]:
    """The encoder that `model.family` names; families that no run builds are continued with `model.from` alone."""
    known = [name for name, encoder_class in FAMILIES.items() if encoder_class.family.run_settings is not None]
    if family not in known:
        choices = f"{', '.join(map(repr, known[:-1]))} or {known[-1]!r}{suggest_near(family, known)}"
        raise InputError(f"configuration key 'model.family' is {shorten(family)}: expected {choices}")
    return FAMILIES[family]


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


def describe_start(config: Config) -> str:
    """What a run begins with: a saved model, a student of one, or a new model of a known size."""
    if config.model.from_ is not None:
        return config.model.from_
    teacher = config.distillation.teacher
    return f"{config.model.family} {config.model.variant}" if teacher is None else f"student of {teacher}"
