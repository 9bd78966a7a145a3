"""Models by name, for prediction: whole ones, or their encoders alone."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from maskwright.errors import InputError, InputWarning
from maskwright.inference.embedding import EmbeddingSettings
from maskwright.inference.runner import FindCausal
from maskwright.inference.sentence_folder import read_sentence_settings
from maskwright.models import FAMILIES
from maskwright.models.any_encoder import find_input_embedding, find_max_length
from maskwright.models.encoder import PackedEncoder
from maskwright.models.files.model_folder import OWN_TYPE_PREFIX, read_config, read_model_folder, resolve_folder
from maskwright.models.transformers_model import is_foreign
from maskwright.objectives.causal_lm import CausalLanguageModel
from maskwright.objectives.kinds import find_objective
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.objectives.saving import load_masked_lm
from maskwright.tasks.foreign import load_foreign_encoder
from maskwright.text.tokenizer.tokenizer import Tokenizer, as_tokenizer, load_tokenizer

Source = str | Path | nn.Module


@dataclass(frozen=True)
class LoadedEncoder:
    encoder: nn.Module
    tokenizer: Tokenizer
    settings: EmbeddingSettings
    """What its folder says of its vectors."""
    find_causal: FindCausal | None = None


def load_language_model(model: Source, tokenizer: Any = None) -> tuple[MaskedLanguageModel, Tokenizer]:
    """A run, a checkpoint, a model folder or a hub id with its own tokenizer, or a model with the one given."""
    if isinstance(model, nn.Module):
        if not isinstance(model, MaskedLanguageModel):
            raise InputError(f"a {type(model).__name__} predicts no tokens; give a MaskedLanguageModel or a name")
        found = model, given_tokenizer(tokenizer)
    else:
        folder = resolve_folder(model)
        found = MaskedLanguageModel.from_pretrained(folder), choose_tokenizer(folder, tokenizer)
    check_vocabulary(found[0].encoder, found[1])
    if found[0].mask_token_id != found[1].mask_token_id:
        raise InputError(
            f"the tokenizer's mask token is {found[1].mask_token_id}, the model's {found[0].mask_token_id};"
            " use the model's tokenizer"
        )
    return found


def load_text_encoder(model: Source, tokenizer: Any = None) -> LoadedEncoder:
    """As `load_language_model`, but the encoder is enough, and a prediction head stays behind."""
    if isinstance(model, nn.Module):
        loaded = _take_apart(model, given_tokenizer(tokenizer), EmbeddingSettings())
    else:
        folder = resolve_folder(model)
        settings = read_sentence_settings(folder) or EmbeddingSettings()
        loaded = _take_apart(_load_any(folder), choose_tokenizer(folder, tokenizer), settings)
    check_vocabulary(loaded.encoder, loaded.tokenizer)
    return loaded


def _take_apart(model: nn.Module, tokenizer: Tokenizer, settings: EmbeddingSettings) -> LoadedEncoder:
    encoder: nn.Module = getattr(model, "encoder", model) if isinstance(model, MaskedLanguageModel) else model
    limit = find_max_length(encoder)
    if limit is not None and settings.max_length is not None:
        settings = replace(settings, max_length=min(limit, settings.max_length))
    causal = model.find_causal if isinstance(model, MaskedLanguageModel) else None
    return LoadedEncoder(encoder, tokenizer, settings, causal)


def _load_any(folder: Path) -> nn.Module:
    """The encoder where it stands on its own; the whole model where that says how its tokens see each other."""
    config = read_config(folder)
    is_native = str(config.get("model_type")).removeprefix(OWN_TYPE_PREFIX) in FAMILIES
    if is_native and find_objective(config) is not CausalLanguageModel:
        return PackedEncoder.from_pretrained(folder)
    if is_foreign(config):
        return load_foreign_encoder(*read_model_folder(folder), folder)
    with warnings.catch_warnings():
        # a prediction head that is newly drawn is not used here
        warnings.filterwarnings("ignore", ".*without a prediction head", InputWarning)
        return load_masked_lm(folder, may_lack_head=True)


def choose_tokenizer(folder: Path, given: Any) -> Tokenizer:
    return load_tokenizer(folder) if given is None else given_tokenizer(given)


def given_tokenizer(tokenizer: Any) -> Tokenizer:
    if tokenizer is None:
        raise InputError("a model that is not named comes without a tokenizer; give it as tokenizer=")
    return load_tokenizer(tokenizer) if isinstance(tokenizer, str | Path) else as_tokenizer(tokenizer)


def check_vocabulary(encoder: nn.Module, tokenizer: Tokenizer) -> None:
    """Spare places of the model are fine, tokens that it does not know are not, unless the tokenizer brought them."""
    embedding = find_input_embedding(encoder)
    own_size = tokenizer.vocab_size - len(tokenizer.added_roles)
    if embedding is not None and own_size > embedding.num_embeddings:
        raise InputError(
            f"the tokenizer has {own_size} tokens, the model {embedding.num_embeddings}; use the model's tokenizer"
        )
