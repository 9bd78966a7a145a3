"""Answers to files, each whole or absent, and how far a long prediction is.

Files are JSON lines, Parquet or NumPy arrays. N texts, T tokens, D width.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
from rich.console import Console
from rich.status import Status

from maskwright.errors import InputError
from maskwright.storage import naming_if_full
from maskwright.terminal import escape_json

Record = dict[str, Any]
_VECTORS = "embedding"
_VECTORS_SUFFIX = ".npz"
_ROWS_PER_GROUP = 1_000
Value = TypeVar("Value")
_PLAIN_INTERVAL_S = 10.0
_LIVE_INTERVAL_S = 0.2


class RecordWriter(ABC):
    """Takes records one at a time; `finish` completes the file, `release` lets go of what was opened beside it."""

    def __init__(self, file: IO[bytes], example: Record | None = None) -> None:
        """`example` is a record with everything in it, where the first ones may lack something."""
        self._file = file
        self._example = example

    @abstractmethod
    def write(self, record: Record) -> None: ...

    @abstractmethod
    def finish(self) -> None: ...

    @abstractmethod
    def release(self) -> None: ...


class JsonLinesWriter(RecordWriter):
    def write(self, record: Record) -> None:
        self._file.write(f"{format_json(record)}\n".encode())

    def finish(self) -> None:
        """Every line is written already."""

    def release(self) -> None:
        """Nothing else is open."""


class ParquetWriter(RecordWriter):
    """The columns are those of the example, or else of the first records."""

    def __init__(self, file: IO[bytes], example: Record | None = None) -> None:
        super().__init__(file, example)
        self._pending: list[Record] = []
        self._writer: Any = None

    def write(self, record: Record) -> None:
        self._pending.append({name: _as_lists(value) for name, value in record.items()})
        if len(self._pending) >= _ROWS_PER_GROUP:
            self._flush()

    def finish(self) -> None:
        """Without any record the table is empty, with the columns of the example where there is one."""
        if self._pending or self._writer is None:
            self._flush()

    def release(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _flush(self) -> None:
        import pyarrow
        from pyarrow import parquet

        schema = None if self._writer is None else self._writer.schema
        if schema is None and self._example is not None:
            schema = pyarrow.Table.from_pylist([self._example]).schema
        table = pyarrow.Table.from_pylist(self._pending, schema=schema)
        if self._writer is None:
            self._writer = parquet.ParquetWriter(self._file, table.schema)
        self._writer.write_table(table)
        self._pending = []


class NpzWriter(RecordWriter):
    """`embeddings` (N, D); of token vectors (T, D), with their number in each text as `lengths` (N,).

    Rows wait in a file beside the result, since an array begins with its shape.
    """

    def __init__(self, file: IO[bytes], example: Record | None = None) -> None:
        super().__init__(file, example)
        self._rows = tempfile.TemporaryFile(dir=Path(file.name).parent)  # noqa: SIM115 (closed by `release`)
        self._lengths: list[int] = []
        self._width = 0
        self._has_tokens = False

    def write(self, record: Record) -> None:
        vectors = np.atleast_2d(np.asarray(record[_VECTORS], dtype=np.float32))
        self._has_tokens = np.ndim(record[_VECTORS]) > 1
        self._width = vectors.shape[1]
        self._lengths.append(len(vectors))
        self._rows.write(vectors.tobytes())

    def finish(self) -> None:
        header = {"descr": "<f4", "fortran_order": False, "shape": (sum(self._lengths), self._width)}
        self._rows.seek(0)
        with zipfile.ZipFile(self._file, "w") as archive:
            with archive.open("embeddings.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array_header_1_0(member, header)
                shutil.copyfileobj(self._rows, member)
            if self._has_tokens:
                with archive.open("lengths.npy", "w") as member:
                    np.lib.format.write_array(member, np.array(self._lengths, dtype=np.int64))

    def release(self) -> None:
        self._rows.close()


_WRITERS: dict[str, type[RecordWriter]] = {
    ".jsonl": JsonLinesWriter,
    ".parquet": ParquetWriter,
    _VECTORS_SUFFIX: NpzWriter,
}


def check_output(path: Path, overwrite: bool, has_vectors: bool) -> None:
    """Refuse before any work what could not be written in the end."""
    if path.suffix not in _WRITERS:
        raise InputError(f"{path} has the suffix '{path.suffix}'; known are {', '.join(_WRITERS)}")
    if path.suffix == _VECTORS_SUFFIX and not has_vectors:
        raise InputError(f"{path} would hold vectors, and these answers are none; write them to .jsonl or .parquet")
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the name of a file")
    if path.exists() and not overwrite:
        raise InputError(f"{path} exists; choose another --out, or add --overwrite to replace it")
    if not path.parent.is_dir():
        raise InputError(f"the folder {path.parent} does not exist; make it, or choose another --out")


@contextmanager
def open_writer(path: Path, example: Record | None = None) -> Iterator[RecordWriter]:
    """A writer by the file's suffix; the file takes its name only when the block ends without an error."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with naming_if_full(path, temporary), temporary.open("wb") as file:
            writer = _WRITERS[path.suffix](file, example)
            try:
                yield writer
                writer.finish()
            finally:
                writer.release()
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def format_json(record: Record) -> str:
    return escape_json(json.dumps(record, ensure_ascii=False, default=_as_plain))


def _as_plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} has no JSON form")


def _as_lists(value: Any) -> Any:
    """Arrow reads arrays of one dimension, and lists of them."""
    return list(value) if isinstance(value, np.ndarray) and value.ndim > 1 else value


def show_progress(values: Iterable[Value], console: Console, noun: str) -> Iterator[Value]:
    """The values as they are, counted on the console, with a closing line."""
    begin = last = time.monotonic()
    count = 0
    status = Status("starting", console=console) if console.is_terminal else None
    interval = _LIVE_INTERVAL_S if status else _PLAIN_INTERVAL_S
    if status:
        status.start()
    try:
        for value in values:
            count += 1
            yield value
            now = time.monotonic()
            if now - last >= interval:
                last = now
                line = _describe(count, now - begin, noun)
                if status:
                    status.update(line)
                else:
                    _print(console, line)
    finally:
        if status:
            status.stop()
    _print(console, _describe(count, time.monotonic() - begin, noun))


def _describe(count: int, elapsed_s: float, noun: str) -> str:
    return f"{count:,} {noun}s in {elapsed_s:,.1f} s, {count / max(elapsed_s, 1e-9):,.0f} a second"


def _print(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)
