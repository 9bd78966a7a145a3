"""Objects in memory, such as models and records, as the folders and files that runs read."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from maskwright.errors import InputError
from maskwright.models.any_encoder import find_max_length, has_segments
from maskwright.objectives.objective import Objective
from maskwright.runs.inputs import open_tokenizer
from maskwright.sections.data import SourceConfig, SourceLike
from maskwright.storage import write_text
from maskwright.tasks.tables import MEMORY, as_table
from maskwright.text.files import hash_file
from maskwright.text.in_memory import TEXT_COLUMN, is_source, read_texts
from maskwright.text.tokenizer.tokenizer import Tokenizer, as_tokenizer, refuse_half_characters

GivenModel = str | Path | nn.Module
"""A run, a checkpoint, a model folder or a hub id; or a model or encoder in memory, ours or of transformers."""
_HASH_DIGITS = 8
_UNFIT = re.compile(r"[^\w.-]+")
"""Characters that are not used in folder names."""
_NAMING = f"call it '{TEXT_COLUMN}'"
"""What to do about the column of texts where no argument names it."""


@dataclass(frozen=True)
class NamedModel:
    place: str
    """Where it can be read."""
    name: str
    """What reports and configurations call it."""


@contextmanager
def name_model(model: GivenModel, tokenizer: Any = None) -> Iterator[NamedModel]:
    """The name of a model; a model in memory is written to a folder that is removed when the block ends."""
    with tempfile.TemporaryDirectory() as folder:
        yield keep_model(model, tokenizer, Path(folder))


def keep_model(model: GivenModel, tokenizer: Any, parent: Path) -> NamedModel:
    """The name of a model; a model in memory is written to a folder in `parent`, named by its class and a hash."""
    if isinstance(model, str | Path):
        if tokenizer is not None:
            raise InputError(f"tokenizer is for a model in memory; {model} has its own: leave it out")
        return NamedModel(str(model), str(model))
    if not callable(getattr(model, "save_pretrained", None)):
        raise InputError(
            f"the model is a {type(model).__name__} without save_pretrained; give a model or encoder of maskwright or"
            " transformers, or the name of one"
        )
    parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".model-", dir=parent))
    try:
        _save(model, take_tokenizer(tokenizer), temporary)
        kind = type(model).__name__
        folder = parent / f"{kind}-{_hash_folder(temporary)}"
        if not folder.exists():
            temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return NamedModel(str(folder), f"{MEMORY}{folder.name}")


def name_folder(model: GivenModel) -> str:
    """What a folder that is made of a model begins with."""
    name = Path(model).resolve().name if isinstance(model, str | Path) else type(model).__name__
    return _UNFIT.sub("-", name)


def name_module(module: nn.Module) -> str:
    """A name for the caller's own encoder in a configuration: its class and a hash of its weights."""
    digest = hashlib.blake2b()
    for name, tensor in module.state_dict().items():
        digest.update(name.encode() + tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return f"{MEMORY}{type(module).__name__}-{digest.hexdigest()[:_HASH_DIGITS]}"


def take_tokenizer(tokenizer: Any) -> Tokenizer:
    """The tokenizer of a model in memory: an object or its path."""
    if tokenizer is None:
        raise InputError("a model that is not named comes without a tokenizer; give it as tokenizer=")
    return open_tokenizer(str(tokenizer)) if isinstance(tokenizer, str | Path) else as_tokenizer(tokenizer)


def name_sources(sources: Any, parent: Path, are_texts: bool = False) -> list[SourceLike]:
    """Sources of text as a list; records in memory become a file of JSON lines in `parent`.

    If no more than their texts is wanted, `are_texts`, they may be strings that are generated, and their column is
    found as `read_texts` finds it.
    """
    several = sources if isinstance(sources, list | tuple) else [sources]
    if not all(isinstance(one, str) or is_source(one) for one in several):
        records = [{TEXT_COLUMN: text} for text in read_texts(sources, naming=_NAMING)] if are_texts else sources
        return [str(_write_records(records, parent))]
    return [
        one.model_dump(exclude_unset=True)
        if isinstance(one, SourceConfig)
        else one
        if isinstance(one, Mapping)
        else str(one)
        for one in several
    ]


def _write_records(data: Any, parent: Path) -> Path:
    table = as_table(data, f"{MEMORY}texts")
    try:
        lines = [json.dumps(record.values, ensure_ascii=False) + "\n" for record in table.records]
    except (TypeError, ValueError) as error:
        raise InputError(f"{table.path} cannot be written as JSON: {error}; give texts and numbers") from error
    for line in lines:
        refuse_half_characters(line, f"a record of {table.path}")
    content = "".join(lines)
    digest = hashlib.blake2b(content.encode(errors="surrogatepass")).hexdigest()[:_HASH_DIGITS]
    parent.mkdir(parents=True, exist_ok=True)
    path = parent / f"texts-{digest}.jsonl"
    write_text(path, content)
    return path


def _save(model: Any, tokenizer: Tokenizer, folder: Path) -> None:
    if isinstance(model, Objective):
        model.save_pretrained(folder, tokenizer)
    else:
        model.save_pretrained(folder)
        tokenizer.save(folder, has_segments=has_segments(model), max_length=find_max_length(model))


def _hash_folder(folder: Path) -> str:
    digest = hashlib.blake2b()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{file.relative_to(folder)} {hash_file(file)}\0".encode())
    return digest.hexdigest()[:_HASH_DIGITS]
