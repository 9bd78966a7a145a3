"""The folder of an index: documents with their vectors in parts, each written whole, and a file that describes them.

    index.json          what it is of: model, how vectors are stored, sources
    parts/0-000000/     documents.jsonl, offsets.npy and the arrays of vectors
    lexical/            of BM25

Parts are mapped into memory, so an index may be larger than that. A part is never changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from maskwright.errors import InputError
from maskwright.inference.search.quantized import Array
from maskwright.storage import check_format_version, read_json, read_record, whole_folder, write_text

INDEX_FILE, PARTS, LEXICAL = "index.json", "parts", "lexical"
_FORMAT_VERSION = 1
_DOCUMENTS, OFFSETS_FILE = "documents.jsonl", "offsets.npy"
_PART_FILE = "part.json"


@dataclass(frozen=True)
class IndexedSource:
    name: str
    fingerprint: str
    num_records: int | None = None
    """None: not all of it is in the index yet."""
    num_documents: int | None = None


@dataclass(frozen=True)
class Manifest:
    kind: Literal["dense", "splade", "colbert", "bm25"]
    model: str
    fingerprint: str
    """Of the model's weights and settings."""
    store: str
    dims: int | None = None
    """Of a vector's numbers only so many are kept."""
    sources: tuple[IndexedSource, ...] = ()
    format_version: int = _FORMAT_VERSION

    @property
    def is_finished(self) -> bool:
        return bool(self.sources) and self.sources[-1].num_records is not None

    @property
    def num_documents(self) -> int:
        return sum(source.num_documents or 0 for source in self.sources)

    def with_last(self, source: IndexedSource) -> Manifest:
        return replace(self, sources=(*self.sources[:-1], source))


def is_index(folder: Path) -> bool:
    return (folder / INDEX_FILE).is_file()


def read_manifest(folder: Path) -> Manifest:
    path = folder / INDEX_FILE
    if not path.is_file():
        raise InputError(f"{folder} holds no {INDEX_FILE}; expected an index that 'maskwright index' made")
    values = read_json(path)
    check_format_version(values.get("format_version"), _FORMAT_VERSION, path)
    return read_record(Manifest, values, path)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    write_text(folder / INDEX_FILE, json.dumps(asdict(manifest), indent=2) + "\n")


@dataclass(frozen=True)
class Document:
    id: str
    text: str


def write_part(
    folder: Path, source: int, number: int, documents: Sequence[Document], arrays: Mapping[str, Array], num_records: int
) -> None:
    """`num_records` of the source are behind these documents; some may have had no text."""
    lines = [f"{json.dumps(asdict(one), ensure_ascii=False)}\n".encode() for one in documents]
    with whole_folder(folder / PARTS / f"{source}-{number:06}") as part:
        (part / _DOCUMENTS).write_bytes(b"".join(lines))
        np.save(part / OFFSETS_FILE, np.cumsum([0, *map(len, lines)], dtype=np.int64))
        for name, array in arrays.items():
            np.save(part / f"{name}.npy", array)
        write_text(part / _PART_FILE, json.dumps({"records": num_records, "documents": len(documents)}) + "\n")


@dataclass(frozen=True)
class Part:
    folder: Path
    num_records: int
    num_documents: int

    @cached_property
    def arrays(self) -> dict[str, Array]:
        """Mapped into memory."""
        paths = sorted(path for path in self.folder.glob("*.npy") if path.name != OFFSETS_FILE)
        return {path.stem: _map_array(path) for path in paths}

    @cached_property
    def _offsets(self) -> NDArray[np.int64]:
        offsets = _map_array(self.folder / OFFSETS_FILE)
        if offsets.dtype != np.int64 or offsets.shape != (self.num_documents + 1,):
            raise InputError(f"{self.folder / OFFSETS_FILE} is damaged; index again")
        return offsets

    def read_document(self, place: int) -> Document:
        start, stop = int(self._offsets[place]), int(self._offsets[place + 1])
        with (self.folder / _DOCUMENTS).open("rb") as file:
            file.seek(start)
            return _parse_document(file.read(max(0, stop - start)), self.folder / _DOCUMENTS)

    def read_documents(self) -> Iterator[Document]:
        path = self.folder / _DOCUMENTS
        with path.open("rb") as file:
            for line in file:
                yield _parse_document(line, path)


def list_parts(folder: Path, source: int) -> list[Part]:
    """Those of a source, in order."""
    return [_read_part(path) for path in sorted((folder / PARTS).glob(f"{source}-[0-9]*"))]


def _read_part(folder: Path) -> Part:
    values = read_json(folder / _PART_FILE)
    counts = [values.get(name) for name in ("records", "documents")]
    if not all(type(count) is int and count >= 0 for count in counts):
        raise InputError(f"{folder / _PART_FILE} is damaged; index again")
    return Part(folder, *counts)  # type: ignore[arg-type]


def _map_array(path: Path) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} cannot be read ({' '.join(str(error).split()):.120}); index again") from error
    return array


def _parse_document(line: bytes, path: Path) -> Document:
    try:
        values = json.loads(line)
        return Document(str(values["id"]), str(values["text"]))
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is damaged: a line is no document; index again") from error


@dataclass(frozen=True)
class OpenIndex:
    folder: Path
    manifest: Manifest
    parts: list[Part]

    @classmethod
    def open(cls, folder: Path) -> OpenIndex:
        """An index that is whole; one whose command was interrupted is an `InputError`."""
        manifest = read_manifest(folder)
        if not manifest.is_finished:
            raise InputError(f"{folder} is not finished; repeat the command that makes it, to go on where it stopped")
        parts = [part for number in range(len(manifest.sources)) for part in list_parts(folder, number)]
        parts = [part for part in parts if part.num_documents]
        found, expected = sum(part.num_documents for part in parts), manifest.num_documents
        if found != expected:
            raise InputError(f"{folder} is damaged: its parts hold {found:,} documents of {expected:,}; index again")
        return cls(folder, manifest, parts)

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        return np.cumsum([0, *(part.num_documents for part in self.parts)])

    def read_document(self, place: int) -> Document:
        part = int(np.searchsorted(self._starts, place, side="right")) - 1
        return self.parts[part].read_document(place - int(self._starts[part]))
