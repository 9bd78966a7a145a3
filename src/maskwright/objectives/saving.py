"""Save and load models with a loss, objectives and tasks alike, as folders of safetensors and JSON.

A model offers two hooks: `describe_files` says what it is, `list_weights` which weights it has, in which file and under
which names. Both directions go by them.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from maskwright.errors import InputError
from maskwright.models.encoder import PackedEncoder
from maskwright.models.family import State
from maskwright.models.files.model_folder import (
    CONFIG_FILE,
    FORMAT_KEY,
    FORMAT_VERSION,
    OWN_KEY,
    WEIGHTS_FILE,
    copy_to_cpu,
    load_into,
    read_model_folder,
    read_own_settings,
    read_weights,
    write_model_folder,
    write_small_files,
)
from maskwright.models.files.safetensors_file import read_tensors, write_safetensors
from maskwright.storage import refuse_unknown_fields
from maskwright.text.tokenizer.tokenizer import Tokenizer, as_tokenizer

CUSTOM_TYPE = "maskwright_custom"
"""The `model_type` of a model around an encoder of the user's own."""


@dataclass(frozen=True)
class ModelFiles:
    """What a folder says of a model beside its weights."""

    config: dict[str, Any]
    """Of config.json."""
    small_files: Mapping[str, Any] = field(default_factory=dict)
    """What further JSON files hold, by their names."""
    pads_left: bool = False
    """Whether others must put padding before a text."""


@dataclass(frozen=True)
class StoredWeight:
    """Where a folder holds a weight of the model."""

    names: tuple[str, ...]
    """In its file; several where ours is theirs stacked."""
    file: str = WEIGHTS_FILE
    """Another than Hugging Face's for what its layout has no place for."""
    other_name: str | None = None
    """Under which some files have it instead."""
    is_written_twice: bool = False
    """Whether it is written under its other name too."""


class SavedModel(nn.Module, ABC):
    """A model that is saved and loaded by what its two hooks say."""

    encoder: nn.Module

    @abstractmethod
    def describe_files(self, tokenizer: Tokenizer | None) -> ModelFiles:
        """What the model is; the tokenizer that it is saved with tells ids of special tokens."""

    @abstractmethod
    def list_weights(self) -> dict[str, StoredWeight]:
        """Where each weight of `state_dict` is stored; left out are those that share the tensor of another."""

    def save_pretrained(self, folder: str | Path, tokenizer: Any = None) -> None:
        """Write the whole model (and its tokenizer, if given) as a folder of safetensors and JSON."""
        self.snapshot(tokenizer).write(Path(folder))

    def load_weights(self, folder: str | Path) -> None:
        """Fill this model from a saved one of the same shape."""
        fill_model(self, Path(folder))

    def snapshot(self, tokenizer: Any = None, wait: bool = True) -> ModelSnapshot:
        """The model as its files will hold it; without `wait` copies from a GPU still run on return."""
        tokenizer = None if tokenizer is None else as_tokenizer(tokenizer)
        described = self.describe_files(tokenizer)
        own = {FORMAT_KEY: FORMAT_VERSION, **described.config.get(OWN_KEY, {})}
        files: dict[str, State] = {WEIGHTS_FILE: {}}
        state = self.state_dict()
        for name, stored in self.list_weights().items():
            weights = files.setdefault(stored.file, {})
            tensor, num_blocks = state[name], len(stored.names)
            blocks = tensor.chunk(num_blocks) if num_blocks > 1 else (tensor,)  # a number has no blocks
            weights |= dict(zip(stored.names, blocks, strict=True))
            if stored.other_name is not None and stored.is_written_twice:
                weights[stored.other_name] = tensor
        copies = {file: copy_to_cpu(weights, wait) for file, weights in files.items()}
        return ModelSnapshot(
            {**described.config, OWN_KEY: own},
            copies.pop(WEIGHTS_FILE),
            tokenizer,
            copies,
            described.small_files,
            described.pads_left,
        )


@dataclass(frozen=True)
class ModelSnapshot:
    """A model as its files will hold it, independent of the model's further changes."""

    config: dict[str, Any]
    weights: State
    tokenizer: Tokenizer | None
    others: dict[str, State] = field(default_factory=dict)
    """Further weights by the name of their file."""
    small_files: Mapping[str, Any] = field(default_factory=dict)
    pads_left: bool = False

    @property
    def num_bytes(self) -> int:
        """Those of the tensors; the files beside them are small."""
        return sum(tensor.nbytes for part in (self.weights, *self.others.values()) for tensor in part.values())

    def write(self, folder: Path) -> None:
        write_model_folder(folder, self.config, self.weights)
        for name, weights in self.others.items():
            write_safetensors(folder / name, weights)
        write_small_files(folder, self.small_files)
        if self.tokenizer is not None:
            has_segments = self.config.get("type_vocab_size", 0) > 1
            self.tokenizer.save(folder, has_segments, self.pads_left)


def fill_model(model: SavedModel, folder: Path, weights: State | None = None, may_lack: Collection[str] = ()) -> None:
    """Fill a model from a saved one of the same shape.

    `weights` are those of the main file where they are read already. Of `may_lack` the model keeps its own.
    """
    weights = read_model_folder(folder)[1] if weights is None else weights
    stored, own = model.list_weights(), model.state_dict()
    kept = {name: tensor for name, tensor in own.items() if name in may_lack or name not in stored}
    load_into(model, kept | read_stored(model, stored, folder, weights), folder / WEIGHTS_FILE)


def read_stored(
    model: SavedModel, stored: Mapping[str, StoredWeight], folder: Path, weights: State | None = None
) -> State:
    """Those of the weights that a folder has, by their names in the model."""
    normalise = _find_normaliser(model.encoder)
    given = {file: _read_file(folder, file, weights, normalise) for file in {one.file for one in stored.values()}}
    state: State = {}
    for name, one in stored.items():
        for names in (one.names, () if one.other_name is None else (one.other_name,)):
            found = [given[one.file].get(normalise(their_name)) for their_name in names]
            blocks = [tensor for tensor in found if tensor is not None]
            if blocks and len(blocks) == len(names):
                state[name] = torch.cat(blocks) if len(blocks) > 1 else blocks[0]
                break
    return state


def _find_normaliser(encoder: nn.Module) -> Callable[[str], str]:
    """What undoes the differences between names in files of one family."""
    return encoder.family.normalise_name if isinstance(encoder, PackedEncoder) else str


def _read_file(folder: Path, file: str, weights: State | None, normalise: Callable[[str], str]) -> Mapping[str, Tensor]:
    if file != WEIGHTS_FILE:
        found = read_tensors(folder / file) if (folder / file).is_file() else {}
    else:
        found = read_weights(folder) if weights is None else weights
    return {normalise(name): tensor for name, tensor in found.items()}


def name_special_ids(tokenizer: Tokenizer | None, with_ends: bool = True) -> dict[str, int]:
    """What config.json says of special tokens; `with_ends` also under the names of a text's begin and end."""
    if tokenizer is None:
        return {}
    cls_id, sep_id = tokenizer.cls_token_id, tokenizer.sep_token_id
    ids = {"cls_token_id": cls_id, "sep_token_id": sep_id}
    return ids | {"bos_token_id": cls_id, "eos_token_id": sep_id} if with_ends else ids


def read_arguments(
    model_class: type, config: Mapping[str, Any], part: str, not_settings: Collection[str], folder: Path
) -> dict[str, Any]:
    """Arguments of a model's constructor that config.json holds; unknown names and wrong types are refused."""
    parameters = inspect.signature(model_class).parameters
    defaults = {name: one.default for name, one in parameters.items() if name not in not_settings}
    settings, file = read_own_settings(config, part), folder / CONFIG_FILE
    refuse_unknown_fields(settings, defaults, file)
    for name, value in settings.items():
        if not _is_setting(name, value, defaults[name]):
            raise InputError(f"{file}: '{name}' is {value!r}, which is no setting of a model")
    return settings


def _is_setting(name: str, value: Any, default: Any) -> bool:
    if name == "special_token_ids":
        return isinstance(value, list) and all(type(item) is int for item in value)
    if default is None or type(default) is int:  # sizes and ids are told by others where they are not given
        return type(value) is int
    return type(value) in ((int, float) if isinstance(default, float) else (str,))
