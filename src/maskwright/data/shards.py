"""Tokenized corpora larger than memory: a folder of memory-mapped shards and a manifest.

manifest.json             sizes, checksums, the tokenizer's hash, the sources and options; written last
tokenizer/                the tokenizer the ids are of
train/00000.ids           ids one after another, 16 or 32 bit, little-endian
train/00000.lengths       the length of each document, 16 or 32 bit
train/00000.words         a bit for each id, eight to a byte: whether a word begins there
validation/...
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from maskwright.data.mirror import DEFAULT_CACHE_GB, Mirror, mirror_prepared
from maskwright.data.store import TokenStore
from maskwright.errors import InputError
from maskwright.storage import read_json, read_record, restore_folder, write_text
from maskwright.stores.addresses import is_store_url
from maskwright.suggestions import OVERWRITE

MANIFEST_FILE = "manifest.json"
TOKENIZER_FOLDER = "tokenizer"
SHARD_FILES = ("ids", "lengths", "words")
_DTYPES = {"<u2", "<u4"}
_OPEN_MIRRORED = 8
"""Shards of a store that are open at once, each kept on the disk as long."""
_AGAIN = f"prepare the data again with {OVERWRITE}"


class Shards(Protocol):
    """A corpus in shards; only those in use need to be in memory."""

    @property
    def num_shards(self) -> int: ...

    @property
    def num_documents(self) -> int: ...

    @property
    def num_tokens(self) -> int: ...

    @property
    def weights(self) -> Sequence[float]:
        """How often each shard is read in an epoch."""

    @property
    def sources(self) -> Sequence[int]:
        """The source of each shard."""

    def store(self, shard: int) -> TokenStore: ...

    def check_words(self) -> None:
        """Refuse a corpus without word boundaries."""

    def row_counts(self, row_length: int, window: int) -> list[int] | None:
        """The number of rows of each shard, if known without packing."""

    def remember_row_counts(self, row_length: int, window: int, counts: list[int]) -> None: ...


class StoresInMemory:
    """Stores as shards, one for each source."""

    def __init__(self, stores: Sequence[TokenStore], weights: Sequence[float] = (1.0,)) -> None:
        self._stores = stores
        self.weights = weights
        self.num_shards = len(stores)
        self.sources = range(len(stores))
        self.num_documents = sum(store.num_documents for store in stores)
        self.num_tokens = sum(store.num_tokens for store in stores)

    def store(self, shard: int) -> TokenStore:
        return self._stores[shard]

    def check_words(self) -> None:
        if any(store.word_bits is None for store in self._stores):
            raise InputError(
                "the tokens come without word boundaries, which masking by words needs; tokenize them with"
                " encode_texts and build the store by TokenStore.from_arrays, or mask by tokens"
            )

    def row_counts(self, row_length: int, window: int) -> list[int] | None:
        return None

    def remember_row_counts(self, row_length: int, window: int, counts: list[int]) -> None: ...


@dataclass(frozen=True)
class ShardInfo:
    """One shard as the manifest describes it."""

    name: str
    num_documents: int
    num_tokens: int
    ids_dtype: str
    lengths_dtype: str
    ids_sha256: str
    lengths_sha256: str
    source: int = 0
    """The source it comes from, for its weight."""
    words_sha256: str | None = None
    """None for shards made before word boundaries were kept."""

    @property
    def num_bytes(self) -> int:
        ids_bytes = np.dtype(self.ids_dtype).itemsize * self.num_tokens
        words_bytes = 0 if self.words_sha256 is None else self.num_words_bytes
        return ids_bytes + np.dtype(self.lengths_dtype).itemsize * self.num_documents + words_bytes

    @property
    def num_words_bytes(self) -> int:
        return -(-self.num_tokens // 8)


@dataclass(frozen=True)
class PreparedSource:
    """A source as the manifest describes it."""

    weight: float
    path: str = ""
    name: str | None = None
    start: float = 0.0


@dataclass(frozen=True)
class _Manifest:
    """The fields that every manifest has."""

    key: str
    tokenizer_sha256: str
    sources: list[PreparedSource]
    splits: dict[str, list[ShardInfo]]
    num_tokens: int
    """Of all splits."""
    num_encoded_tokens: int
    num_empty_documents: int
    num_unknown_tokens: int


def _list_shards(manifest: _Manifest, folder: Path, split: str) -> list[ShardInfo]:
    """The shards of a split; a missing one is damage, not a smaller corpus."""
    place = f"{folder / MANIFEST_FILE} does not list all shards"
    infos = manifest.splits.get(split, [])
    num_tokens = sum(info.num_tokens for infos in manifest.splits.values() for info in infos)
    if num_tokens != manifest.num_tokens:
        raise InputError(f"{place}: it lists {num_tokens:,} of {manifest.num_tokens:,} tokens; {_AGAIN}")
    suffixes = {info.name: {".ids", ".lengths"} | ({".words"} if info.words_sha256 else set()) for info in infos}
    for file in sorted((folder / split).glob("[!.]*.*")):
        if file.suffix.removeprefix(".") in SHARD_FILES and file.suffix not in suffixes.get(file.stem, set()):
            raise InputError(f"{place}: it has no checksum of {file}; {_AGAIN}")
    for info in infos:
        if not 0 <= info.source < len(manifest.sources) or not {info.ids_dtype, info.lengths_dtype} <= _DTYPES:
            raise InputError(
                f"{folder / MANIFEST_FILE} has a source or dtype of {info.name} that does not exist; {_AGAIN}"
            )
    return infos


class PreparedShards:
    """One split of a prepared folder. Files are opened when their shard is used."""

    def __init__(self, folder: str | Path, split: str) -> None:
        self.folder = Path(folder)
        self.split = split
        manifest = _check_manifest(read_manifest(self.folder), self.folder)
        self.infos = _list_shards(manifest, self.folder, split)
        self.described = manifest.sources
        self.sources = [info.source for info in self.infos]
        weights = [source.weight for source in manifest.sources]
        self.weights = [weights[info.source] if split == "train" else 1.0 for info in self.infos]
        self._mirror = Mirror.find(self.folder)
        self.store = lru_cache(maxsize=32 if self._mirror is None else _OPEN_MIRRORED)(self._open)

    @property
    def num_shards(self) -> int:
        return len(self.infos)

    @property
    def num_documents(self) -> int:
        return sum(info.num_documents for info in self.infos)

    @property
    def num_tokens(self) -> int:
        return sum(info.num_tokens for info in self.infos)

    @property
    def has_words(self) -> bool:
        return all(info.words_sha256 is not None for info in self.infos)

    def check_words(self) -> None:
        if not self.has_words:
            raise InputError(
                f"{self.folder} was prepared without word boundaries, which masking by words needs;"
                f" {_AGAIN}, or set masking.strategy=token"
            )

    def row_counts(self, row_length: int, window: int) -> list[int] | None:
        file = self._rows_file(row_length, window)
        if not file.is_file():
            return None
        known = read_json(file)
        counts = known.get("counts")
        if known.get("shards") != [info.lengths_sha256 for info in self.infos] or not isinstance(counts, list):
            return None
        is_whole = len(counts) == self.num_shards and all(type(count) is int and count > 0 for count in counts)
        return counts if is_whole else None

    def remember_row_counts(self, row_length: int, window: int, counts: list[int]) -> None:
        """Store row counts beside the shards, unless the folder is read-only."""
        values = {"shards": [info.lengths_sha256 for info in self.infos], "counts": counts}
        try:
            write_text(self._rows_file(row_length, window), json.dumps(values) + "\n")
        except OSError:
            return

    def _open(self, shard: int) -> TokenStore:
        """Memory-map a shard's files and verify their checksums, which takes a few milliseconds.

        Those of a store are fetched first, and once more if they are not what they should be.
        """
        info = self.infos[shard]
        if self._mirror is None:
            return self._map(info)
        self._fetch(info, self._mirror)
        try:
            return self._map(info)
        except InputError:  # damaged on the way, or removed by another process in the meantime
            for suffix in SHARD_FILES:
                self._path(info, suffix).unlink(missing_ok=True)
            self._fetch(info, self._mirror)
            return self._map(info)

    def _fetch(self, info: ShardInfo, mirror: Mirror) -> None:
        sizes = {
            "ids": np.dtype(info.ids_dtype).itemsize * info.num_tokens,
            "lengths": np.dtype(info.lengths_dtype).itemsize * info.num_documents,
        }
        if info.words_sha256 is not None:
            sizes["words"] = info.num_words_bytes
        for suffix, num_bytes in sizes.items():
            mirror.fetch(self._path(info, suffix), num_bytes)

    def _map(self, info: ShardInfo) -> TokenStore:
        ids = _map_file(self._path(info, "ids"), info.ids_dtype, info.num_tokens, info.ids_sha256)
        lengths = _map_file(self._path(info, "lengths"), info.lengths_dtype, info.num_documents, info.lengths_sha256)
        offsets = np.zeros(info.num_documents + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        if info.words_sha256 is None:
            return TokenStore(ids, offsets)
        words = _map_file(self._path(info, "words"), "u1", info.num_words_bytes, info.words_sha256)
        return TokenStore(ids, offsets, words)

    def _path(self, info: ShardInfo, suffix: str) -> Path:
        return self.folder / self.split / f"{info.name}.{suffix}"

    def _rows_file(self, row_length: int, window: int) -> Path:
        return self.folder / self.split / f"rows-{row_length}-{window}.json"


def find_prepared(place: str | Path, cache_gb: float = DEFAULT_CACHE_GB) -> Path | None:
    """The prepared folder of this name, or the one that mirrors it from a store; None for anything else."""
    folder = mirror_prepared(place, cache_gb) if isinstance(place, str) and is_store_url(place) else Path(place)
    return folder if folder is not None and is_prepared(folder) else None


def is_prepared(folder: str | Path) -> bool:
    """Whether a folder holds Maskwright's manifest; other programs use the same file name."""
    restore_folder(Path(folder))
    file = Path(folder) / MANIFEST_FILE
    return file.is_file() and {"key", "splits"} <= set(read_json(file))


def read_manifest(folder: Path) -> dict[str, Any]:
    restore_folder(folder)
    file = folder / MANIFEST_FILE
    if not file.is_file():
        raise InputError(f"{folder} holds no prepared data: {MANIFEST_FILE} is missing; run maskwright prepare")
    manifest = read_json(file)
    _check_manifest(manifest, folder)
    return manifest


def _check_manifest(manifest: dict[str, Any], folder: Path) -> _Manifest:
    try:
        return read_record(_Manifest, manifest, folder / MANIFEST_FILE)
    except InputError as error:
        raise InputError(f"{error}; {_AGAIN}") from None


def _map_file(path: Path, dtype: str, count: int, sha256: str) -> np.ndarray[Any, np.dtype[Any]]:
    expected = np.dtype(dtype).itemsize * count
    found = path.stat().st_size if path.is_file() else None
    if found != expected:
        state = "is missing" if found is None else f"has {found:,} bytes, {expected:,} are expected"
        raise InputError(f"{path} {state}; {_AGAIN}")
    mapped = np.memmap(path, dtype=dtype, mode="r")
    if hashlib.sha256(mapped.data).hexdigest() != sha256:
        raise InputError(f"{path} does not match its checksum in {MANIFEST_FILE}; {_AGAIN}")
    return mapped


def choose_ids_dtype(vocab_size: int) -> str:
    return "<u2" if vocab_size <= 1 << 16 else "<u4"


class ShardWriter:
    """Files appear under their names when `close` ends; until then they have temporary ones."""

    def __init__(self, folder: Path, name: str, ids_dtype: str, source: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._name, self._source = folder, name, source
        self._dtype = np.dtype(ids_dtype)
        self._lengths: list[NDArray[np.int64]] = []
        self._word_starts: list[NDArray[np.bool_]] = []
        self._digest = hashlib.sha256()
        self._file = self._temporary("ids").open("wb")
        self.num_documents = 0
        self.num_tokens = 0

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()
        for suffix in SHARD_FILES:
            self._temporary(suffix).unlink(missing_ok=True)

    def add(self, ids: NDArray[np.integer], lengths: NDArray[np.integer], word_starts: NDArray[np.bool_]) -> None:
        """Documents of the given lengths, their ids one after another and which of them begin a word.

        Documents without ids are left out.
        """
        encoded = ids.astype(self._dtype).tobytes()
        self._digest.update(encoded)
        self._file.write(encoded)
        kept = lengths[lengths > 0].astype(np.int64)
        self._lengths.append(kept)
        self._word_starts.append(word_starts)
        self.num_documents += len(kept)
        self.num_tokens += len(ids)

    def close(self) -> ShardInfo | None:
        """The finished shard; None, and no files, when nothing was added."""
        if not self.num_documents:
            return None
        _finish(self._file)
        lengths = np.concatenate(self._lengths)
        lengths_dtype = "<u2" if lengths.max() < 1 << 16 else "<u4"
        lengths_sha256 = self._write("lengths", lengths.astype(lengths_dtype).tobytes())
        words_sha256 = self._write("words", np.packbits(np.concatenate(self._word_starts)).tobytes())
        for suffix in SHARD_FILES:
            os.replace(self._temporary(suffix), self._folder / f"{self._name}.{suffix}")
        return ShardInfo(
            name=self._name,
            num_documents=self.num_documents,
            num_tokens=self.num_tokens,
            ids_dtype=self._dtype.str,
            lengths_dtype=lengths_dtype,
            ids_sha256=self._digest.hexdigest(),
            lengths_sha256=lengths_sha256,
            words_sha256=words_sha256,
            source=self._source,
        )

    def _write(self, suffix: str, content: bytes) -> str:
        with self._temporary(suffix).open("wb") as file:
            file.write(content)
            _finish(file)
        return hashlib.sha256(content).hexdigest()

    def _temporary(self, suffix: str) -> Path:
        return self._folder / f".{self._name}.{suffix}.tmp"


def _finish(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
