"""Models in object stores: the files that are needed, as a folder in the cache of this machine.

A folder is named by the versions of its objects and appears when all of them are there, so it never changes. Processes
share it. When a store's model has been replaced, the folder of the one before stays for those who still read it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from maskwright.errors import InputError
from maskwright.storage import naming
from maskwright.stores.addresses import StoreUrl
from maskwright.stores.objects import fetch_object, find_cache_folder, list_names, read_versions
from maskwright.terminal import echo

_NUM_KEPT = 2
_ABANDONED_S = 24 * 3600.0
"""After so long an unfinished folder belongs to a process that was killed."""


def fetch_folder(url: StoreUrl, choose: Callable[[Collection[str]], Sequence[str]]) -> Path:
    """A folder with the objects below `url` that `choose` takes of their names."""
    sizes = list_names(url)
    names = sorted(choose(sizes.keys()))
    if not names:
        raise InputError(f"there is no model at {url}; expected a run, a checkpoint or a model folder")
    versions = read_versions([url / name for name in names])
    digest = hashlib.sha256("".join(f"{pair}\n" for pair in zip(names, versions, strict=True)).encode()).hexdigest()
    folder = find_cache_folder() / "models" / hashlib.sha256(url.key.encode()).hexdigest()[:16] / digest[:16]
    if folder.is_dir():
        os.utime(folder)
        return folder
    echo(f"fetching {url} ({sum(sizes[name] for name in names) / 1e6:,.1f} MB)", err=True)
    temporary = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.tmp")
    try:
        for name in names:
            with naming(temporary / name):
                (temporary / name).parent.mkdir(parents=True, exist_ok=True)
                fetch_object(url / name, temporary / name)
        try:
            os.rename(temporary, folder)
        except OSError:
            if not folder.is_dir():  # or else another process was faster
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    _remove_old(folder.parent)
    return folder


def _remove_old(parent: Path) -> None:
    """Those used longest ago, and what killed processes have left."""
    folders = [(_find_time(path), path) for path in parent.iterdir()]
    whole = sorted((one for one in folders if not one[1].name.startswith(".")), reverse=True)
    abandoned = [one for one in folders if one[1].name.startswith(".") and one[0] < time.time() - _ABANDONED_S]
    for _, path in [*whole[_NUM_KEPT:], *abandoned]:
        shutil.rmtree(path, ignore_errors=True)


def _find_time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # another process removes it
        return time.time()
