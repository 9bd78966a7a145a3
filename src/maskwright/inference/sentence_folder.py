"""How a sentence-transformers folder turns texts into vectors: read from its small files, nothing in it is run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from maskwright.errors import InputError
from maskwright.inference.embedding import EmbeddingSettings, Pooling
from maskwright.untrusted import MAX_FILE_BYTES, parse_json_object, read_json_object, shorten

_MODULES_FILE = "modules.json"
_TRANSFORMER_FILE = "sentence_bert_config.json"
_MODEL_FILE = "config_sentence_transformers.json"
_POOLING_FOLDER = "1_Pooling"
_POOLINGS: dict[str, Pooling] = {"mean": "mean", "cls": "cls"}
_OLDER_PREFIX = "pooling_mode_"
_OLDER_NAMES = {"mean_tokens": "mean", "cls_token": "cls"}
_CHAINS = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])


def read_sentence_settings(folder: Path) -> EmbeddingSettings | None:
    """The settings of such a folder; None for a folder that is a plain model."""
    if not (folder / _MODULES_FILE).is_file():
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
        lowercases=transformer.get("do_lower_case") is True,
    )


def _read_chain(folder: Path) -> list[str]:
    """The names of the modules, in order; any but the usual ones would give other vectors than ours."""
    path = folder / _MODULES_FILE
    with path.open("rb") as file:
        listed = file.read(MAX_FILE_BYTES)
    modules = parse_json_object(b'{"modules": ' + listed + b"}", str(path))["modules"]
    is_list = isinstance(modules, list) and all(isinstance(module, dict) for module in modules)
    chain = [str(module.get("type")).rpartition(".")[2] for module in modules] if is_list else []
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


def _read_optional(path: Path) -> dict[str, Any]:
    return read_json_object(path) if path.is_file() else {}
