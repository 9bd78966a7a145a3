"""Save and load models with a loss, objectives and tasks alike, as folders of safetensors and JSON.

A model has two hooks: `describe_files` gives its configuration, and `list_weights` its weights with their files and
names. Saving and loading both use them.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from maskwright.errors import InputError
from maskwright.models.any_encoder import find_max_length
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
from maskwright.models.files.safetensors_file import write_safetensors
from maskwright.models.files.tensor_parts import StoredTensors, TensorPart, list_part_files, split_part
from maskwright.storage import refuse_unknown_fields
from maskwright.text.tokenizer.tokenizer import Tokenizer, as_tokenizer

CUSTOM_TYPE = "maskwright_custom"
"""The `model_type` of a model around an encoder of the user's own."""


@dataclass(frozen=True)
class ModelFiles:
    """The files of a model folder beside its weights."""

    config: dict[str, Any]
    """The content of config.json."""
    small_files: Mapping[str, Any] = field(default_factory=dict)
    """Other JSON files, by name."""
    pads_left: bool = False
    """Whether other programs must pad on the left."""
    max_length: int | None = None
    """Tokens of the longest input; None: what the encoder takes."""


@dataclass(frozen=True)
class StoredWeight:
    """The place of a weight in a model folder."""

    names: tuple[str, ...]
    """Its names in the file; several if our weight stacks theirs."""
    file: str = WEIGHTS_FILE
    """Another file for weights that Hugging Face's layout does not have."""
    other_name: str | None = None
    """An alternative name in some files."""
    is_written_twice: bool = False
    """Whether it is also written under `other_name`."""


class SavedModel(nn.Module, ABC):
    """A model that is saved and loaded by its two hooks."""

    encoder: nn.Module

    @abstractmethod
    def describe_files(self, tokenizer: Tokenizer | None) -> ModelFiles:
        """The files that describe the model; the tokenizer, if given, provides the ids of special tokens."""

    @abstractmethod
    def list_weights(self) -> dict[str, StoredWeight]:
        """The place of each weight of `collect_state`, without weights that share a tensor with another."""

    def collect_state(self) -> State:
        """What is written, by our names."""
        return self.state_dict()

    def save_pretrained(self, folder: str | Path, tokenizer: Any = None) -> None:
        """Write the whole model (and its tokenizer, if given) as a folder of safetensors and JSON."""
        self.snapshot(tokenizer).write(Path(folder))

    def load_weights(self, folder: str | Path) -> None:
        """Load the weights of a saved model of the same shape."""
        fill_model(self, Path(folder))

    def snapshot(self, tokenizer: Any = None, wait: bool = True) -> ModelSnapshot:
        """A copy of what its files will hold; without `wait` copies from a GPU are asynchronous."""
        files = self.place_parts({name: TensorPart(tensor) for name, tensor in self.collect_state().items()})
        tensors = {file: {name: part.rows for name, part in parts.items()} for file, parts in files.items()}
        copies = {file: copy_to_cpu(weights, wait) for file, weights in tensors.items()}
        described = self.describe(tokenizer)
        return replace(described, weights=copies.pop(WEIGHTS_FILE, {}), others=copies)

    def describe(self, tokenizer: Any = None) -> ModelSnapshot:
        """The files beside the weights."""
        tokenizer = None if tokenizer is None else as_tokenizer(tokenizer)
        described = self.describe_files(tokenizer)
        own = {FORMAT_KEY: FORMAT_VERSION, **described.config.get(OWN_KEY, {})}
        return ModelSnapshot(
            {**described.config, OWN_KEY: own},
            None,
            tokenizer,
            small_files=described.small_files,
            pads_left=described.pads_left,
            max_length=described.max_length or find_max_length(self.encoder),
        )

    @property
    def is_written_as_is(self) -> bool:
        """Whether `collect_state` is the state itself, so that processes can write the rows that they have of it."""
        return True

    def place_parts(self, state: Mapping[str, TensorPart | None]) -> dict[str, dict[str, TensorPart]]:
        """Parts of the state, under our names, by the files they belong into and their names there; None for what
        another process has.
        """
        files: dict[str, dict[str, TensorPart]] = {}
        for name, stored in self.list_weights().items():
            part, parts = state[name], files.setdefault(stored.file, {})
            if part is None:
                continue
            parts |= dict(zip(stored.names, split_part(part, len(stored.names)), strict=True))
            if stored.other_name is not None and stored.is_written_twice:
                parts[stored.other_name] = part
        return files


@dataclass(frozen=True)
class ModelSnapshot:
    """A copy of what a model's files will hold, independent of later changes of the model."""

    config: dict[str, Any]
    weights: State | None
    """None if processes write what they have of the weights themselves."""
    tokenizer: Tokenizer | None
    others: dict[str, State] = field(default_factory=dict)
    """Weights of other files, by file name."""
    small_files: Mapping[str, Any] = field(default_factory=dict)
    pads_left: bool = False
    max_length: int | None = None
    """Tokens of the longest input, for the tokenizer's file."""

    @property
    def num_bytes(self) -> int:
        """The size of the tensors; the other files are small."""
        return sum(tensor.nbytes for part in (self.weights or {}, *self.others.values()) for tensor in part.values())

    def write(self, folder: Path) -> None:
        write_model_folder(folder, self.config, self.weights)
        for name, weights in self.others.items():
            (folder / name).parent.mkdir(exist_ok=True)
            write_safetensors(folder / name, weights)
        write_small_files(folder, self.small_files)
        if self.tokenizer is not None:
            has_segments = self.config.get("type_vocab_size", 0) > 1
            self.tokenizer.save(folder, has_segments, self.pads_left, self.max_length)


def fill_model(model: SavedModel, folder: Path, weights: State | None = None, may_lack: Collection[str] = ()) -> None:
    """Load the weights of a saved model of the same shape into a model.

    `weights` are those of the main file, if already read. Weights in `may_lack` may be missing and keep their values.
    """
    weights = read_model_folder(folder)[1] if weights is None else weights
    stored, own = model.list_weights(), model.state_dict()
    kept = {name: tensor for name, tensor in own.items() if name in may_lack or name not in stored}
    load_into(model, kept | read_stored(model, stored, folder, weights), folder / WEIGHTS_FILE)


def read_stored(
    model: SavedModel, stored: Mapping[str, StoredWeight], folder: Path, weights: State | None = None
) -> State:
    """The weights that a folder has, by their names in the model."""
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
    """A function that normalises names of weights between files of one family."""
    return encoder.family.normalise_name if isinstance(encoder, PackedEncoder) else str


def _read_file(folder: Path, file: str, weights: State | None, normalise: Callable[[str], str]) -> Mapping[str, Tensor]:
    if file != WEIGHTS_FILE:
        is_there = (folder / file).is_file() or list_part_files(folder / file)
        found = dict(StoredTensors(folder / file)) if is_there else {}
        if torch.get_default_device().type == "meta":
            found = {name: tensor.to("meta") for name, tensor in found.items()}
    else:
        found = read_weights(folder) if weights is None else weights
    return {normalise(name): tensor for name, tensor in found.items()}


def name_special_ids(tokenizer: Tokenizer | None, with_ends: bool = True) -> dict[str, int]:
    """Ids of special tokens for config.json; with `with_ends` also as those of a text's begin and end."""
    if tokenizer is None:
        return {}
    cls_id, sep_id = tokenizer.cls_token_id, tokenizer.sep_token_id
    ids = {"cls_token_id": cls_id, "sep_token_id": sep_id}
    return ids | {"bos_token_id": cls_id, "eos_token_id": sep_id} if with_ends else ids


def read_arguments(
    model_class: type, config: Mapping[str, Any], part: str, not_settings: Collection[str], folder: Path
) -> dict[str, Any]:
    """Arguments of a model's constructor from config.json; unknown names and wrong types are refused."""
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
