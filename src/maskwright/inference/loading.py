"""Models by name, for prediction: whole ones, those of a task, or encoders alone.

How a sentence-transformers folder turns texts into vectors is read from its small files; nothing in it is run.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from maskwright.errors import InputError, InputWarning
from maskwright.inference.embed import EmbeddingSettings, Pooling
from maskwright.inference.runner import FindCausal
from maskwright.models.any_encoder import find_input_embedding, find_max_length
from maskwright.models.encoder import FAMILIES, PackedEncoder
from maskwright.models.files.model_folder import (
    MODULES_FILE,
    OWN_TYPE_PREFIX,
    find_task_architecture,
    read_config,
    read_model_folder,
    resolve_folder,
)
from maskwright.models.transformers_model import is_foreign
from maskwright.objectives.masked_lm import CausalLanguageModel, MaskedLanguageModel, find_objective, load_masked_lm
from maskwright.objectives.mlm_files import lacks_head
from maskwright.tasks.foreign import load_foreign_encoder
from maskwright.tasks.model import TaskModel
from maskwright.tasks.retrieval.settings import DENSE, Kind, RetrievalSettings, load_settings
from maskwright.tasks.task import Task
from maskwright.text.tokenizer.tokenizer import Tokenizer, as_tokenizer, load_tokenizer
from maskwright.untrusted import MAX_FILE_BYTES, parse_json_object, read_json_object, shorten

Source = str | Path | nn.Module
_TRANSFORMER_FILE = "sentence_bert_config.json"
_MODEL_FILE = "config_sentence_transformers.json"
_POOLING_FOLDER = "1_Pooling"
_POOLINGS: dict[str, Pooling] = {"mean": "mean", "cls": "cls"}
_OLDER_PREFIX = "pooling_mode_"
_OLDER_NAMES = {"mean_tokens": "mean", "cls_token": "cls"}
_ROLE_NAMES = {"query": ("query",), "document": ("document", "passage", "corpus")}
_OTHER_RETRIEVERS = {
    "SpladePooling": "a sparse retriever, which gives weights of tokens",
    **dict.fromkeys(
        ("MultiVectorMask", "pylate.models.Dense.Dense"),
        "a retriever of late interaction, which gives a vector to each token",
    ),
}
"""By how the name of one of their modules ends."""
_CHAINS = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])


@dataclass(frozen=True)
class LoadedEncoder:
    encoder: nn.Module
    tokenizer: Tokenizer
    settings: EmbeddingSettings
    """What its folder says of its vectors."""
    find_causal: FindCausal | None = None


EncoderSource = Source | LoadedEncoder


@dataclass(frozen=True)
class LoadedModel:
    """A model with all that it was trained for, and the same weights as an encoder alone."""

    whole: MaskedLanguageModel | TaskModel | None
    """None: there is an encoder and nothing on it."""
    encoder: LoadedEncoder

    @property
    def module(self) -> nn.Module:
        return self.encoder.encoder if self.whole is None else self.whole

    @property
    def tokenizer(self) -> Tokenizer:
        return self.encoder.tokenizer


def find_kind(folder: Path) -> Kind:
    """What a model folder's texts become in retrieval; what was not trained to be another kind gives vectors."""
    return load_settings(read_config(folder)).kind


def find_retriever(model: EncoderSource) -> Kind | None:
    """The kind of a retriever that gives something else than a vector to a text; None of any other model."""
    if isinstance(model, TaskModel):
        settings = getattr(model.task, "settings", None)
        kind = settings.kind if isinstance(settings, RetrievalSettings) else DENSE
    elif isinstance(model, nn.Module | LoadedEncoder):
        return None
    else:
        kind = find_kind(resolve_folder(model))
    return None if kind == DENSE else kind


def load_model(model: Source, tokenizer: Any = None) -> LoadedModel:
    """Whatever a name stands for, read once: a model for a task, a language model, or an encoder alone."""
    if isinstance(model, nn.Module):
        whole = model if isinstance(model, MaskedLanguageModel | TaskModel) else None
        return _with_encoder(whole or model, given_tokenizer(tokenizer), EmbeddingSettings())
    folder = resolve_folder(model)
    is_retriever = find_retriever(folder) is not None
    settings = None if is_retriever else read_sentence_settings(folder)
    if is_retriever or find_task_architecture(read_config(folder)) is not None:
        task_model = TaskModel.from_pretrained(folder)
        return _with_encoder(task_model, choose_tokenizer(folder, tokenizer), settings or EmbeddingSettings())
    if settings is None and not lacks_head(folder):
        try:
            return _with_encoder(*load_language_model(folder, tokenizer), EmbeddingSettings())
        except InputError:  # without a head, or made for another mask token: its encoder may still be of use
            pass
    return LoadedModel(None, load_text_encoder(folder, tokenizer))


def _with_encoder(model: nn.Module, tokenizer: Tokenizer, settings: EmbeddingSettings) -> LoadedModel:
    whole = model if isinstance(model, MaskedLanguageModel | TaskModel) else None
    base = model.encoder if isinstance(model, TaskModel) else model
    encoder = _take_apart(base, tokenizer, settings)
    check_vocabulary(encoder.encoder, tokenizer)
    return LoadedModel(whole, encoder)


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


def load_text_encoder(model: EncoderSource, tokenizer: Any = None) -> LoadedEncoder:
    """As `load_language_model`, but the encoder is enough, and a prediction head stays behind."""
    if isinstance(model, LoadedEncoder):
        return model
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


def load_task_model(model: Source, tokenizer: Any, purpose: str, *expected: type[Task]) -> tuple[TaskModel, Tokenizer]:
    """A run, a model folder or a hub id with its own tokenizer, or a `TaskModel` with the one given.

    `purpose` is what the model is wanted for, as an error would say it ("classify texts"), and `expected` are the tasks
    that can do it: a model of another task, or of none, is an `InputError`.
    """
    if isinstance(model, nn.Module):
        if not isinstance(model, TaskModel):
            raise InputError(f"a {type(model).__name__} is no model to {purpose}; give a TaskModel or a name")
        found = model, given_tokenizer(tokenizer)
    else:
        folder = resolve_folder(model)
        found = TaskModel.from_pretrained(folder), choose_tokenizer(folder, tokenizer)
    task = found[0].task
    if not isinstance(task, expected):
        names = " or ".join(one.__name__ for one in expected)
        raise InputError(
            f"the model was fine-tuned for {type(task).__name__}, and {names} is needed to {purpose}; choose a model"
            " that was fine-tuned for that"
        )
    check_vocabulary(found[0].encoder, found[1])
    return found


def read_sentence_settings(folder: Path) -> EmbeddingSettings | None:
    """The settings of such a folder; None for a folder that is a plain model."""
    if not (folder / MODULES_FILE).is_file():
        return None
    chain = _read_chain(folder)
    transformer = _read_optional(folder / _TRANSFORMER_FILE)
    max_length = transformer.get("max_seq_length")
    if max_length is not None and type(max_length) is not int:
        raise InputError(f"{folder / _TRANSFORMER_FILE} has max_seq_length {shorten(max_length)}; expected a number")
    return EmbeddingSettings(
        pooling=_read_pooling(folder / _POOLING_FOLDER / "config.json"),
        normalize="Normalize" in chain,
        max_length=max_length,
        prompt=_read_prompt(folder / _MODEL_FILE),
        prompts=_read_role_prompts(folder / _MODEL_FILE),
        lowercases=transformer.get("do_lower_case") is True,
    )


def _read_chain(folder: Path) -> list[str]:
    """The names of the modules, in order; any but the usual ones would give other vectors than ours."""
    path = folder / MODULES_FILE
    with path.open("rb") as file:
        listed = file.read(MAX_FILE_BYTES)
    modules = parse_json_object(b'{"modules": ' + listed + b"}", str(path))["modules"]
    is_list = isinstance(modules, list) and all(isinstance(module, dict) for module in modules)
    types = [str(module.get("type")) for module in modules] if is_list else []
    chain = [name.rpartition(".")[2] for name in types]
    other = next(
        (kind for ending, kind in _OTHER_RETRIEVERS.items() if any(one.endswith(ending) for one in types)), None
    )
    if other is not None:
        raise InputError(
            f"{path} is of {other} and no vector to a text; use it with embed, serve, index, search, mine or eval"
            " retrieval"
        )
    if chain not in _CHAINS:
        raise InputError(
            f"{path} lists the modules {', '.join(map(shorten, chain)) or 'none'}; only a Transformer, a Pooling and"
            " perhaps a Normalize can be read: use sentence-transformers for this model"
        )
    if [module.get("path") for module in modules[:2]] != ["", _POOLING_FOLDER]:
        raise InputError(
            f"{path} keeps its modules in other folders than '' and '{_POOLING_FOLDER}'; save the model anew with"
            " sentence-transformers"
        )
    return chain


def _read_pooling(path: Path) -> Pooling:
    if not path.is_file():
        raise InputError(f"{path} is missing; it says how the model's vectors are pooled: fetch the model again")
    config = read_json_object(path)
    if config.get("include_prompt") is False:
        raise InputError(f"{path} leaves the prompt out of the mean; use sentence-transformers for this model")
    asked = config.get("pooling_mode", _read_older_modes(config))
    modes = asked if isinstance(asked, list) else [asked]
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        raise InputError(
            f"{path} pools by {', '.join(map(str, modes))}; only mean and cls can be read: use"
            " sentence-transformers for this model"
        )
    return _POOLINGS[modes[0]]


def _read_older_modes(config: Mapping[str, Any]) -> list[str]:
    """Modes that are true each under a key of its own; none is the mean, as there."""
    chosen = [name.removeprefix(_OLDER_PREFIX) for name, value in config.items() if value is True]
    modes = [_OLDER_NAMES.get(name, name) for name in chosen if f"{_OLDER_PREFIX}{name}" in config]
    return modes or ["mean"]


def _read_prompt(path: Path) -> str:
    config = _read_optional(path)
    name, prompts = config.get("default_prompt_name"), config.get("prompts")
    if name is None:
        return ""
    prompt = prompts.get(name) if isinstance(prompts, dict) else None
    if not isinstance(prompt, str):
        raise InputError(f"{path} names the prompt {shorten(name)} and does not hold it; correct it")
    return prompt


def _read_role_prompts(path: Path) -> dict[str, str]:
    """By the names that sentence-transformers looks for; the first that is there."""
    prompts = _read_optional(path).get("prompts")
    known = prompts if isinstance(prompts, dict) else {}
    found = {role: next((known[name] for name in names if name in known), None) for role, names in _ROLE_NAMES.items()}
    return {role: prompt for role, prompt in found.items() if isinstance(prompt, str)}


def _read_optional(path: Path) -> dict[str, Any]:
    return read_json_object(path) if path.is_file() else {}
