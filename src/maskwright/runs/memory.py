"""The memory of a model's weights: a known name, or counted in a folder or in the hub's cache."""

from __future__ import annotations

import math
from pathlib import Path

from maskwright.catalogue.table import ModelMemory, compute_memory, read_table
from maskwright.errors import InputError


def measure_memory(name: str) -> ModelMemory:
    """Of a folder, a run, a checkpoint, a known model or a hub id that is in the cache; nothing is downloaded."""
    if Path(name).is_dir():
        return _count(name, Path(name))
    table = read_table()
    known = table.find(name)
    if known is not None:
        return compute_memory(known)
    cached = _find_cached(name)
    if cached is None:
        raise InputError(f"'{name}' is no folder, no known model and no model in the hub's cache{table.suggest(name)}")
    return _count(name, cached)


def _count(name: str, folder: Path) -> ModelMemory:
    # Here, so that the answer about a known name does not wait for torch.
    import torch

    from maskwright.models.files.model_folder import read_shapes, resolve_folder

    shapes = read_shapes(resolve_folder(folder))
    # Whole numbers of these sizes are positions and the like; weights in whole numbers are of 8 bits.
    parameters = {
        tensor: math.prod(info.shape)
        for tensor, info in shapes.items()
        if info.dtype not in (torch.int64, torch.int32, torch.bool)
    }
    counting = f"counted in {len(parameters)} stored tensors, heads included; tied weights are stored once"
    return ModelMemory(name, sum(parameters.values()), counting)


def _find_cached(name: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        file = try_to_load_from_cache(name, "config.json")
    except HFValidationError:  # a path or other text that can be no id
        return None
    return Path(file).parent if isinstance(file, str) else None
