"""Model folders: config.json and model.safetensors in, an encoder out, and back.

A model that Hugging Face's architecture can express is written under its `model_type`, so that other tools read it;
any other is written under a type of ours, so that they refuse it rather than compute something different.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from maskwright.errors import InputError, InputWarning
from maskwright.models.encoder import PackedEncoder
from maskwright.models.families import FAMILIES, family_of
from maskwright.models.family import Family, State
from maskwright.models.weights_file import write_safetensors
from maskwright.models.weights_reading import CONFIG_FILE, WEIGHTS_FILE, read_config, read_weights
from maskwright.storage import check_format_version, naming, refuse_unknown_fields, restore_folder, write_text
from maskwright.suggestions import suggest

MODEL_FOLDER = "model"
CHECKPOINTS_FOLDER = "checkpoints"
OWN_TYPE_PREFIX = "maskwright_"
OWN_KEY = "maskwright"
"""The object in config.json with what Hugging Face's names do not cover."""
FORMAT_KEY = "format_version"
FORMAT_VERSION = 1
"""Of model folders; the first that says so, older ones are read alike."""
_OWN_PARTS = ("encoder", "masked_lm", "nlp_head", "objective", "replaced_tokens", "sentence_pairs", "similarity")
_MAX_NAMED = 5
_CHECKPOINT_NAME = re.compile(r"step-(0|[1-9][0-9]*)")
"""As they are written: other digits and leading zeros would name a step twice."""


def resolve_folder(folder_or_id: str | Path) -> Path:
    """The model folder behind a model folder, a run, a checkpoint or a hub id.

    An unfinished run stands for its newest checkpoint; a hub id is downloaded, weights and tokenizer files only.
    """
    if not isinstance(folder_or_id, str | Path):
        raise InputError(f"a model is {folder_or_id!r:.80}; expected a model folder, a run, a checkpoint or a hub id")
    folder = Path(folder_or_id)
    restore_folder(folder)
    if folder.is_dir():
        return _find_model_folder(folder)
    name = str(folder_or_id)
    is_path = name.count("/") > 1 or name.startswith((".", "/", "~")) or ("/" in name and folder.parent.is_dir())
    if folder.exists() or is_path:
        raise InputError(f"no model folder at {name}")
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "vocab.txt", "merges.txt", "*.model"])
        )
    except Exception as error:  # the hub client raises many kinds for "not there" and "not reachable"
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"'{name}' is neither a folder nor a model the hub could give: {reason}") from error


def _find_model_folder(folder: Path) -> Path:
    candidates = [folder, folder / MODEL_FOLDER]
    candidates += [checkpoint / MODEL_FOLDER for checkpoint in list_checkpoints(folder / CHECKPOINTS_FOLDER)]
    return next((candidate for candidate in candidates if (candidate / CONFIG_FILE).is_file()), folder)


def list_checkpoints(folder: Path) -> list[Path]:
    """The `step-N` folders in a folder, newest first."""
    checkpoints = [path for path in folder.glob("step-*") if _CHECKPOINT_NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(checkpoints, key=lambda path: int(path.name.removeprefix("step-")), reverse=True)


def read_model_folder(folder: Path) -> tuple[dict[str, Any], State]:
    """The configuration and the weights of a model folder, checked to be readable."""
    config = read_config(folder)
    _check_format(config, folder / CONFIG_FILE)
    return config, read_weights(folder)


def _check_format(config: Mapping[str, Any], file: Path) -> None:
    """Refuse what a newer version of this program wrote."""
    own = config.get(OWN_KEY, {})
    if isinstance(own, dict):
        check_format_version(own.get(FORMAT_KEY, 1), FORMAT_VERSION, file)
        refuse_unknown_fields(own, (FORMAT_KEY, *_OWN_PARTS), file)


def write_model_folder(folder: Path, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
    """`weights` are tensors of their own on the CPU, as `copy_to_cpu` makes them."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{WEIGHTS_FILE}.tmp"
    try:
        with naming(folder / WEIGHTS_FILE):
            write_safetensors(temporary, weights, metadata={"format": "pt"})
            temporary.replace(folder / WEIGHTS_FILE)
    finally:
        temporary.unlink(missing_ok=True)
    write_text(folder / CONFIG_FILE, json.dumps(config, indent=2) + "\n")


def copy_to_cpu(tensors: Mapping[str, Tensor], wait: bool = True) -> State:
    """Copies that share no memory, as safetensors needs them: the blocks of a stacked weight do share.

    Without `wait` copies from a GPU still run on return; wait for the device before they are read.
    """

    def copy(tensor: Tensor) -> Tensor:
        empty = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        return empty.copy_(tensor.detach(), non_blocking=True)

    copies = {name: copy(tensor) for name, tensor in tensors.items()}
    if wait and any(tensor.is_cuda for tensor in tensors.values()):
        torch.cuda.synchronize()
    return copies


def load_into(module: nn.Module, state: Mapping[str, Tensor], source: Path) -> None:
    """Fill a module, naming what is missing or of another shape."""
    expected = module.state_dict()
    missing = sorted(set(expected) - set(state))
    if missing:
        raise InputError(f"{source} lacks {len(missing)} weights of the model, first '{missing[0]}'")
    for name, tensor in expected.items():
        if state[name].shape != tensor.shape:
            raise InputError(
                f"{source}: '{name}' has shape {tuple(state[name].shape)}, the configuration says {tuple(tensor.shape)}"
            )
    module.load_state_dict({name: state[name] for name in expected})


def warn_of_unused(modules: Iterable[str], folder: Path) -> None:
    """Say which weights of a folder a masked language model has no place for."""
    names = sorted(modules)
    if names:
        more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
        warnings.warn(
            f"{folder}: weights of {', '.join(names[:_MAX_NAMED])}{more} are left aside, as a masked language model has"
            " no place for them",
            InputWarning,
            stacklevel=3,
        )


def find_family(config: Mapping[str, Any], folder: Path) -> Family:
    if "model_type" not in config:
        raise InputError(f"{folder / CONFIG_FILE} has no 'model_type'; add the one it is{suggest('', FAMILIES)}")
    model_type = str(config["model_type"]).removeprefix(OWN_TYPE_PREFIX)
    if model_type not in FAMILIES:
        raise InputError(f"{folder / CONFIG_FILE} has model_type '{model_type}'{suggest(model_type, FAMILIES)}")
    return FAMILIES[model_type]


def describe_encoder(encoder: PackedEncoder, with_head: bool, is_expressible: bool = True) -> dict[str, Any]:
    """config.json of a model."""
    family = family_of(encoder)
    values, own = family.split_config(encoder.config)
    is_expressible &= own.get("normalization_type", "layer_norm") == "layer_norm"
    is_expressible &= not family.find_unusual(encoder.config)
    prefix = "" if is_expressible else OWN_TYPE_PREFIX
    return {
        "model_type": f"{prefix}{family.model_type}",
        "architectures": [f"{prefix}{family.architectures[with_head]}"],
        **values,
        OWN_KEY: {FORMAT_KEY: FORMAT_VERSION, "encoder": own},
    }


def read_own_settings(config: Mapping[str, Any], part: str) -> dict[str, Any]:
    """What a config.json holds beside Hugging Face's names; nothing in one that others wrote."""
    own = config.get(OWN_KEY, {})
    settings = own.get(part, {}) if isinstance(own, dict) else None
    if not isinstance(settings, dict):
        raise InputError(f"'{OWN_KEY}' must hold an object '{part}'")
    return settings


def build_encoder(config: Mapping[str, Any], folder: Path, weights: Mapping[str, Tensor]) -> PackedEncoder:
    """The encoder a config.json describes, to be filled with `weights`; until then its own are arbitrary.

    They are compared with what the configuration asks for before memory is taken for it.
    """
    encoder = outline_encoder(config, folder)
    _check_shapes(encoder, family_of(encoder), weights, folder)
    return encoder.to_empty(device="cpu")


def outline_encoder(config: Mapping[str, Any], folder: Path) -> PackedEncoder:
    """The encoder a config.json describes, on the meta device: its shapes and settings, no weights."""
    family = find_family(config, folder)
    own = read_own_settings(config, "encoder")
    refuse_unknown_fields(own, (*family.own_settings, *family.unwritten_settings), folder / CONFIG_FILE)
    try:
        shape = family.read_config(config, own)
    except InputError as error:
        raise InputError(f"{folder / CONFIG_FILE}: {error}") from error
    with torch.device("meta"):
        return family.encoder_class(shape)


def _check_shapes(encoder: PackedEncoder, family: Family, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Compare without a copy: what ours keeps stacked is compared block by block."""
    given = family.normalise(weights)
    expected = {
        theirs: (block.shape[0] // len(names), *block.shape[1:])
        for name, block in encoder.state_dict().items()
        for names in [family.their_names(name)]
        for theirs in names
    }
    missing = [name for name in expected if name not in given]
    if missing:
        raise InputError(f"{folder} lacks {len(missing)} weights of the model, first '{missing[0]}'")
    for name, shape in expected.items():
        if tuple(given[name].shape) != shape:
            raise InputError(
                f"{folder}: '{name}' has shape {tuple(given[name].shape)}, {CONFIG_FILE} says {shape}; the two do not"
                " belong together"
            )


def load_encoder(folder_or_id: str | Path) -> PackedEncoder:
    folder = resolve_folder(folder_or_id)
    config, weights = read_model_folder(folder)
    encoder = build_encoder(config, folder, weights)
    encoder.load_state_dict(family_of(encoder).from_theirs(weights, encoder.state_dict()))
    return encoder.eval()


def save_encoder(folder: str | Path, encoder: PackedEncoder) -> None:
    weights = family_of(encoder).to_theirs(encoder.state_dict())
    write_model_folder(Path(folder), describe_encoder(encoder, with_head=False), copy_to_cpu(weights))
