"""Model folders: config.json and .safetensors files in and out, and which folder a run, checkpoint or hub id means.

A folder may come from anybody: no code in it is run, no path in it leads out of it, and each file is checked against
its header before memory is allocated. Weights in other formats are refused with the one line that converts them:
pickled files run code as they are loaded, so the user decides where that happens.
"""

from __future__ import annotations

import json
import re
import shlex
import warnings
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from maskwright.errors import InputError, InputWarning
from maskwright.models.files.safetensors_file import TensorInfo, load_tensors, read_header, write_safetensors
from maskwright.models.files.stored_model import fetch_folder
from maskwright.models.files.tensor_parts import StoredTensors, list_part_files
from maskwright.storage import check_format_version, naming, refuse_unknown_fields, restore_folder, write_text
from maskwright.stores.addresses import StoreUrl, find_place, is_store_url
from maskwright.untrusted import ADVICE, read_json_object, shorten

MODEL_FOLDER = "model"
CHECKPOINTS_FOLDER = "checkpoints"
OWN_TYPE_PREFIX = "maskwright_"
OWN_KEY = "maskwright"
"""The key in config.json for settings that Hugging Face's layout does not have."""
FORMAT_KEY = "format_version"
FORMAT_VERSION = 1
"""Version of the format of model folders. Folders without a version are older and are read the same way."""
CONFIG_FILE = "config.json"
MODULES_FILE = "modules.json"
"""Where sentence-transformers lists the parts of a model."""
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
CODE_KEYS = ("auto_map", "trust_remote_code", "custom_pipelines")

_SHARD_NAME = re.compile(r"[A-Za-z0-9._+=@ -]{1,200}\.safetensors", re.ASCII)
"""Excludes separators, drives and control characters, so a name stays inside the folder."""
_OWN_PARTS = (
    "encoder",
    "masked_lm",
    "nlp_head",
    "objective",
    "replaced_tokens",
    "retrieval",
    "sentence_pairs",
    "similarity",
)
_MODEL_SUFFIXES = (".json", ".safetensors", "vocab.txt", "merges.txt", ".model")
_RUN_SUFFIXES = (".json", ".jsonl", ".yaml")
_TOKENIZER_FILE = "tokenizer.json"
_RUN_CONFIG_FILE, _FINAL_FILE = "config.yaml", "final.json"
SUMMARY_FILE = "seeds.json"
"""In a folder with runs of several seeds: their scores, and which is the best."""
SEED_NAME = re.compile(r"seed-(0|[1-9][0-9]*)")
_STORED_CHECKPOINT = re.compile(rf"{CHECKPOINTS_FOLDER}/step-(0|[1-9][0-9]*)/checksums\.json")
"""In a store a checkpoint is whole when its checksums are there, and a run when its figures are."""
_MAX_NAMED = 5
_CHECKPOINT_NAME = re.compile(r"step-(0|[1-9][0-9]*)")
"""No leading zeros or other digits, so each step has one name."""
_TASK_ENDINGS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
_PICKLED = "pickled weights are not read, because loading them runs code"
_REASONS = {
    ".bin": _PICKLED,
    ".ckpt": _PICKLED,
    ".pt": _PICKLED,
    ".pth": _PICKLED,
    ".h5": "TensorFlow weights are not read",
    ".msgpack": "Flax weights are not read",
}
_NOT_WEIGHTS = {"training_args.bin", "optimizer.bin", "scheduler.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth"}
_CLASS_NAME = re.compile(r"[A-Za-z0-9]+(Model|For[A-Za-z]+)")
_WITH_OWN_HEAD = ("deberta", "deberta-v2")
"""Their published files hold a head that transformers loads only with an option, and else initialises anew."""
_OLD_TRANSFORMERS = " (with 'transformers<5', the last to read them)"


def resolve_folder(folder_or_id: str | Path) -> Path:
    """The model folder behind a model folder, a run or a checkpoint, also one in a store by its URL, or a hub id.

    For an unfinished run it is the newest checkpoint, for runs of several seeds the best one; of what is not on this
    machine only weights, tokenizer and small files are fetched.
    """
    if not isinstance(folder_or_id, str | Path):
        raise InputError(f"a model is {folder_or_id!r:.80}; expected a model folder, a run, a checkpoint or a hub id")
    folder = find_place(folder_or_id) if is_store_url(folder_or_id) else Path(folder_or_id)
    if isinstance(folder, StoreUrl):
        return _find_model_folder(fetch_folder(folder, _choose_objects))
    restore_folder(folder)
    if folder.is_dir():
        return _find_model_folder(folder)
    name = str(folder_or_id)
    is_path = name.count("/") > 1 or name.startswith((".", "/", "~")) or ("/" in name and folder.parent.is_dir())
    if folder.exists() or is_path:
        raise InputError(f"no model folder at {name}")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=[f"*{suffix}" for suffix in _MODEL_SUFFIXES]))
    except Exception as error:  # the hub client raises many kinds for "not there" and "not reachable"
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"'{name}' is neither a folder nor a model the hub could give: {reason}") from error


def _find_model_folder(folder: Path) -> Path:
    candidates = [folder, folder / MODEL_FOLDER]
    candidates += [checkpoint / MODEL_FOLDER for checkpoint in list_checkpoints(folder / CHECKPOINTS_FOLDER)]
    candidates += _find_best_seed(folder)
    return next((candidate for candidate in candidates if (candidate / CONFIG_FILE).is_file()), folder)


def _find_best_seed(folder: Path) -> list[Path]:
    """The model of the best of several seeds; empty for a folder without a summary of seeds."""
    file = folder / SUMMARY_FILE
    best = read_json_object(file).get("best") if file.is_file() else None
    return [folder / best / MODEL_FOLDER] if isinstance(best, str) and SEED_NAME.fullmatch(best) else []


def list_model_files(folder: Path) -> list[Path]:
    """The files of a model folder that loading it may read."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name.endswith(_MODEL_SUFFIXES))


def _choose_objects(names: Collection[str]) -> list[str]:
    """Of a store: the model folder, or that of a run's end, or of its newest checkpoint; and what tells of the run."""
    if {CONFIG_FILE, _TOKENIZER_FILE} & set(names):
        return [name for name in names if name.endswith(_MODEL_SUFFIXES)]
    is_unfinished = _RUN_CONFIG_FILE in names and _FINAL_FILE not in names
    steps = [found[1] for found in map(_STORED_CHECKPOINT.fullmatch, names) if found]
    folders = [f"{CHECKPOINTS_FOLDER}/step-{step}/{MODEL_FOLDER}/" for step in sorted(steps, key=int, reverse=True)]
    folders = folders if is_unfinished else [f"{MODEL_FOLDER}/", *folders]
    folder = next((folder for folder in folders if f"{folder}{CONFIG_FILE}" in names), None)
    if folder is None:
        return []
    return [
        name
        for name in names
        if (name.startswith(folder) and name.endswith(_MODEL_SUFFIXES))
        or ("/" not in name and name.endswith(_RUN_SUFFIXES))
    ]


def list_checkpoints(folder: Path) -> list[Path]:
    """The `step-N` folders in a folder, newest first."""
    checkpoints = [path for path in folder.glob("step-*") if _CHECKPOINT_NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(checkpoints, key=lambda path: int(path.name.removeprefix("step-")), reverse=True)


def read_model_folder(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The configuration and the weights of a model folder, checked to be readable."""
    config = read_config(folder)
    _check_format(config, folder / CONFIG_FILE)
    return config, read_weights(folder)


def _check_format(config: Mapping[str, Any], file: Path) -> None:
    """Refuse a folder that a newer version of Maskwright wrote."""
    own = config.get(OWN_KEY, {})
    if isinstance(own, dict):
        check_format_version(own.get(FORMAT_KEY, 1), FORMAT_VERSION, file)
        refuse_unknown_fields(own, (FORMAT_KEY, *_OWN_PARTS), file)


def write_model_folder(folder: Path, config: Mapping[str, Any], weights: Mapping[str, Tensor] | None) -> None:
    """`weights` are separate tensors on the CPU, as `copy_to_cpu` returns them; None if others write them."""
    folder.mkdir(parents=True, exist_ok=True)
    if weights is not None:
        _write_weights(folder, weights)
    write_text(folder / CONFIG_FILE, json.dumps(config, indent=2) + "\n")


def _write_weights(folder: Path, weights: Mapping[str, Tensor]) -> None:
    temporary = folder / f".{WEIGHTS_FILE}.tmp"
    try:
        with naming(folder / WEIGHTS_FILE):
            write_safetensors(temporary, weights, metadata={"format": "pt"})
            temporary.replace(folder / WEIGHTS_FILE)
    finally:
        temporary.unlink(missing_ok=True)


def copy_to_cpu(tensors: Mapping[str, Tensor], wait: bool = True) -> dict[str, Tensor]:
    """Copies that share no memory, as safetensors requires; the blocks of a stacked weight do share.

    Without `wait` copies from a GPU are asynchronous; synchronise before reading them.
    """

    def copy(tensor: Tensor) -> Tensor:
        empty = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        return empty.copy_(tensor.detach(), non_blocking=tensor.is_cuda)  # only CUDA's copies are waited for

    copies = {name: copy(tensor) for name, tensor in tensors.items()}
    if wait and any(tensor.is_cuda for tensor in tensors.values()):
        torch.cuda.synchronize()
    return copies


def load_into(module: nn.Module, state: Mapping[str, Tensor], source: Path) -> None:
    """Load weights into a module; errors name missing tensors and wrong shapes."""
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
    """Warn of weights that a masked language model does not have."""
    names = sorted(modules)
    if names:
        more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
        warnings.warn(
            f"{folder}: weights of {', '.join(names[:_MAX_NAMED])}{more} are ignored, as a masked language model has"
            " no place for them",
            InputWarning,
            stacklevel=3,
        )


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
    """The files with a model's weights, their headers checked: model.safetensors, the shards its index names, or parts
    that processes wrote.
    """
    if _has_parts(folder):
        return list_part_files(folder / WEIGHTS_FILE)
    return list(_read_headers(folder))


def read_shapes(folder: Path) -> dict[str, TensorInfo]:
    """Shapes and dtypes of all tensors by name, from the headers; no weights are read."""
    if _has_parts(folder):
        return dict(StoredTensors(folder / WEIGHTS_FILE).infos)
    return {name: info for header in _read_headers(folder).values() for name, info in header.items()}


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of all files; under `torch.device("meta")` their shapes alone."""
    if torch.get_default_device().type == "meta":
        return {name: torch.empty(info.shape, dtype=info.dtype) for name, info in read_shapes(folder).items()}
    if _has_parts(folder):
        return dict(StoredTensors(folder / WEIGHTS_FILE))
    return {name: tensor for path in _read_headers(folder) for name, tensor in load_tensors(path).items()}


def _has_parts(folder: Path) -> bool:
    return not (folder / WEIGHTS_FILE).is_file() and bool(list_part_files(folder / WEIGHTS_FILE))


def _incomplete(folder: Path, file_name: str) -> InputError:
    return InputError(f"{folder} is not a complete model folder: {file_name} is missing")


def _read_headers(folder: Path) -> dict[Path, dict[str, TensorInfo]]:
    if (folder / WEIGHTS_FILE).is_file():
        return {folder / WEIGHTS_FILE: read_header(folder / WEIGHTS_FILE)}
    if (folder / INDEX_FILE).is_file():
        return _read_shard_headers(folder)
    if folder.is_dir() and (foreign := _find_foreign_weights(folder)):
        raise _refuse_foreign_weights(foreign)
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


def read_own_settings(config: Mapping[str, Any], part: str) -> dict[str, Any]:
    """Maskwright's own settings in a config.json; empty if another program wrote it."""
    own = config.get(OWN_KEY, {})
    settings = own.get(part, {}) if isinstance(own, dict) else None
    if not isinstance(settings, dict):
        raise InputError(f"'{OWN_KEY}' must hold an object '{part}'")
    return settings


def find_task_architecture(config: Mapping[str, Any]) -> str | None:
    """The architecture in a config.json that has a head for a task; None for any other.

    XLNet's and XLM's plain head for questions is called Simple, beside one that searches beams.
    """
    architectures = config.get("architectures")
    names = [str(name) for name in architectures] if isinstance(architectures, list) else []
    return next((name for name in names if name.removesuffix("Simple").endswith(_TASK_ENDINGS)), None)


def _find_foreign_weights(folder: Path) -> Path | None:
    """The first weights file that is not safetensors; names known to transformers come first."""
    files = [
        path
        for path in folder.iterdir()
        if path.suffix in _REASONS and path.name not in _NOT_WEIGHTS and path.is_file()
    ]
    return min(files, key=lambda path: (_loading_option(path) is None, path.name), default=None)


def _refuse_foreign_weights(file: Path) -> InputError:
    """Why a file is not read, and the command to convert it if its source is trusted."""
    return InputError(f"{file.parent} has its weights in {file.name} only; {_REASONS[file.suffix]}; {_advice(file)}")


def _advice(file: Path) -> str:
    option = _loading_option(file)
    if option is None:
        target = str(file.with_name("model.safetensors"))
        return (
            "load the model with the program that saved it and run there: "
            f"from safetensors.torch import save_model; save_model(model, {target!r})"
        )
    code = (
        f"import sys; from transformers import {_find_class(file.parent)} as Model; "
        f"Model.from_pretrained(sys.argv[1]{option}).save_pretrained(sys.argv[1])"
    )
    note = _OLD_TRANSFORMERS if file.suffix != ".bin" else ""
    folder = shlex.quote(str(file.parent))
    return f'if you trust where it comes from, convert it with: python -c "{code}" {folder}{note}'


def _loading_option(file: Path) -> str | None:
    """The option of `from_pretrained` that reads this file; None if there is none."""
    if re.fullmatch(r"pytorch_model(-\d+-of-\d+)?\.bin", file.name):
        return ", legacy=False" if _read_config_if_there(file.parent).get("model_type") in _WITH_OWN_HEAD else ""
    return {"tf_model.h5": ", from_tf=True", "flax_model.msgpack": ", from_flax=True"}.get(file.name)


def _read_config_if_there(folder: Path) -> dict[str, Any]:
    config_file = folder / "config.json"
    return read_json_object(config_file) if config_file.is_file() else {}


def _find_class(folder: Path) -> str:
    """The class named in config.json, so that no head is lost or added; only a plain identifier is accepted."""
    architectures = _read_config_if_there(folder).get("architectures")
    name = architectures[0] if isinstance(architectures, list) and architectures else None
    return name if isinstance(name, str) and _CLASS_NAME.fullmatch(name) else "AutoModelForMaskedLM"


def write_small_files(folder: Path, files: Mapping[str, Any]) -> None:
    """Write each file as JSON in the folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(content, indent=2) + "\n")
