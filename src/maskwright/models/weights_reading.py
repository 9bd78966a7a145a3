"""What a model folder holds, read as data: config.json and the tensors of its .safetensors files.

A folder may come from anybody: nothing in it is run, no name in it leads out of it, and each file is checked against
its own header before memory is taken for its tensors.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
from safetensors.torch import load_file
from torch import Tensor

from maskwright.errors import InputError, InputWarning
from maskwright.models.foreign_weights import find_foreign_weights, refuse_foreign_weights
from maskwright.models.safetensors_header import TensorInfo, damaged, read_header
from maskwright.untrusted import ADVICE, read_json_object, shorten

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
CODE_KEYS = ("auto_map", "trust_remote_code", "custom_pipelines")

_SHARD_NAME = re.compile(r"[A-Za-z0-9._+=@ -]{1,200}\.safetensors", re.ASCII)
"""No separators, drives or control characters: such a name stays in the folder."""


def read_config(folder: Path) -> dict[str, Any]:
    """config.json without the keys that name code, which is never run."""
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise _incomplete(folder, CONFIG_FILE)
    config = read_json_object(path)
    named = [key for key in CODE_KEYS if config.pop(key, None)]
    if named:
        keys = ", ".join(f"'{key}'" for key in named)
        warnings.warn(f"{path} names code of its own ({keys}); it is never run", InputWarning, stacklevel=2)
    return config


def list_weights_files(folder: Path) -> list[Path]:
    """The files with a model's weights, their headers checked: model.safetensors, or the shards its index names."""
    return list(_read_headers(folder))


def read_shapes(folder: Path) -> dict[str, TensorInfo]:
    """What the headers of all files say, by tensor name; no weights are read."""
    return {name: info for header in _read_headers(folder).values() for name, info in header.items()}


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of all files."""
    return {name: tensor for path in _read_headers(folder) for name, tensor in _load(path).items()}


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of one file."""
    read_header(path)
    return _load(path)


def _load(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except safetensors.SafetensorError as error:
        raise damaged(path, str(error)) from error


def _incomplete(folder: Path, file_name: str) -> InputError:
    return InputError(f"{folder} is not a complete model folder: {file_name} is missing")


def _read_headers(folder: Path) -> dict[Path, dict[str, TensorInfo]]:
    if (folder / WEIGHTS_FILE).is_file():
        return {folder / WEIGHTS_FILE: read_header(folder / WEIGHTS_FILE)}
    if (folder / INDEX_FILE).is_file():
        return _read_shard_headers(folder)
    if folder.is_dir() and (foreign := find_foreign_weights(folder)):
        raise refuse_foreign_weights(foreign)
    raise InputError(f"{_incomplete(folder, WEIGHTS_FILE)}; weights in other formats are neither read nor downloaded")


def _read_shard_headers(folder: Path) -> dict[Path, dict[str, TensorInfo]]:
    """The headers of all shards; each tensor is in the shard the index names, and in no other."""
    index_file = folder / INDEX_FILE
    weight_map = _read_weight_map(index_file)
    headers: dict[Path, dict[str, TensorInfo]] = {}
    shard_of: dict[str, str] = {}
    for shard in sorted(set(weight_map.values())):
        if not (folder / shard).is_file():
            raise InputError(f"{index_file} names {shard}, which is not in the folder; {ADVICE}")
        headers[folder / shard] = read_header(folder / shard)
        for name in headers[folder / shard]:
            if name in shard_of:
                raise InputError(
                    f"tensor {shorten(name)} is in both {shard_of[name]} and {shard} of {folder}; {ADVICE}"
                )
            shard_of[name] = shard
    for name, shard in weight_map.items():
        if shard_of.get(name) != shard:
            raise InputError(f"{index_file} places tensor {shorten(name)} in {shard}, which lacks it; {ADVICE}")
    return headers


def _read_weight_map(index_file: Path) -> Mapping[str, str]:
    weight_map = read_json_object(index_file).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(f"{index_file} has weight_map {shorten(weight_map)}, expected tensor and file names; {ADVICE}")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not _SHARD_NAME.fullmatch(shard):
            raise InputError(
                f"{index_file} places tensor {shorten(name)} in {shorten(shard)}, "
                f"expected the plain name of a .safetensors file in the folder; {ADVICE}"
            )
    return weight_map
