"""Prepared shards in a store: a folder on this machine holds the shards in use, fetched when they are opened.

The folder looks like any prepared one, except that shards come and go: beyond `data.cache_gb` those unused for longest
are removed. Its `store.json` says where the others are. Processes of one machine share it: files appear whole, under
their names, and every opened one is checked against its checksum in the manifest.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from glob import has_magic
from pathlib import Path, PurePosixPath

from maskwright.errors import InputError
from maskwright.storage import naming, read_json, write_text
from maskwright.stores.addresses import StoreUrl, find_place, parse_url
from maskwright.stores.objects import fetch_object, find_cache_folder, list_names, measure_object, read_object

STORE_FILE = "store.json"
DEFAULT_CACHE_GB = 20.0
_SHARD_SUFFIXES = (".ids", ".lengths", ".words")
_MANIFEST_FILE = "manifest.json"


def mirror_prepared(place: str, cache_gb: float = DEFAULT_CACHE_GB) -> Path | None:
    """The folder that mirrors a prepared one in a store; None if the URL names anything else."""
    url = find_place(place)
    if isinstance(url, Path):
        return url
    if has_magic(url.key) or measure_object(url / _MANIFEST_FILE) is None:
        return None
    manifest = read_object(url / _MANIFEST_FILE)
    folder = find_cache_folder() / "shards" / hashlib.sha256(url.key.encode()).hexdigest()[:16]
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
        kept = folder / _MANIFEST_FILE
        is_current = kept.is_file() and kept.read_bytes() == manifest
        if not is_current:
            kept.unlink(missing_ok=True)
            for file in _list_shard_files(folder):
                file.unlink(missing_ok=True)
            _fetch_small_files(url, folder)
        write_text(folder / STORE_FILE, json.dumps({"url": str(url), "max_bytes": int(cache_gb * 1e9)}) + "\n")
        if not is_current:
            write_text(kept, manifest.decode())
    return folder


def _fetch_small_files(url: StoreUrl, folder: Path) -> None:
    """The tokenizer, and the numbers of rows that are known."""
    for name in list_names(url):
        if PurePosixPath(name).suffix in _SHARD_SUFFIXES or name == _MANIFEST_FILE:
            continue
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        _fetch(url / name, folder / name)


def _fetch(url: StoreUrl, target: Path) -> None:
    temporary = target.with_name(f".{target.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        fetch_object(url, temporary)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _list_shard_files(folder: Path) -> Iterator[Path]:
    return (file for file in folder.glob("*/*") if file.suffix in _SHARD_SUFFIXES)


class Mirror:
    """The shards of a mirroring folder."""

    def __init__(self, folder: Path) -> None:
        values = read_json(folder / STORE_FILE)
        url, max_bytes = values.get("url"), values.get("max_bytes")
        if not isinstance(url, str) or type(max_bytes) is not int:
            raise InputError(f"{folder / STORE_FILE} is damaged; delete {folder}, and the data is fetched again")
        self._folder, self.url, self._max_bytes = folder, parse_url(url), max_bytes

    @staticmethod
    def find(folder: Path) -> Mirror | None:
        """None for a folder that holds its shards itself."""
        return Mirror(folder) if (folder / STORE_FILE).is_file() else None

    def fetch(self, path: Path, num_bytes: int) -> None:
        """Make a shard's file be there, of which `num_bytes` are expected."""
        name = path.relative_to(self._folder)
        if len(name.parts) != 2 or ".." in name.parts:
            raise InputError(f"{self.url} is damaged: its manifest names a shard {str(name)!r:.80}; prepare it again")
        if path.is_file() and path.stat().st_size == num_bytes:
            with suppress(FileNotFoundError):
                os.utime(path)
            return
        with naming(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._make_room(num_bytes)
            _fetch(self.url / name.as_posix(), path)

    def _make_room(self, num_bytes: int) -> None:
        """Remove the files unused for longest; one that is open stays readable until it is closed."""
        found = []
        for file in _list_shard_files(self._folder):
            with suppress(FileNotFoundError):  # another process was faster
                found.append((file.stat().st_mtime_ns, file.stat().st_size, file))
        total = sum(size for _, size, _ in found)
        for _, size, file in sorted(found):
            if total + num_bytes <= self._max_bytes:
                return
            with suppress(FileNotFoundError, PermissionError):  # Windows keeps open files
                file.unlink()
            total -= size
