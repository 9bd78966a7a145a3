"""Answers as files of JSON lines, Parquet or NumPy arrays: how a block of records is kept, and blocks become the file.

N texts, T tokens, D width.
"""

from __future__ import annotations

import base64
import json
import math
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import IO, Any
from uuid import UUID

import numpy as np

from maskwright.errors import InputError
from maskwright.suggestions import OUT, OVERWRITE
from maskwright.terminal import escape_json

Record = dict[str, Any]
Blocks = Callable[[], Iterator[bytes]]
"""All blocks from the first, each time it is called."""
_TEXT = "text"
VECTORS = "embedding"
_VECTORS_SUFFIX = ".npz"
_ROW_COLUMN = "row"
_AS_JSON = {b"maskwright": b"json"}
"""Marks a column of a block whose values have no type in common."""


@dataclass(frozen=True)
class AnswerColumns:
    """What is known of records beforehand, with values of their types; a column that is not here has any."""

    labels: Record = field(default_factory=dict)
    """Which record of the source it is: these and columns unknown here come first."""
    answers: Record = field(default_factory=dict)


class AnswerFormat(ABC):
    """Blocks are kept one by one, since a long prediction may be killed; one after another they are the file."""

    def __init__(self, columns: AnswerColumns) -> None:
        self.columns = columns

    @abstractmethod
    def encode(self, records: Sequence[Record]) -> bytes:
        """A block of records."""


class AssembledFormat(AnswerFormat):
    """The file is made of all blocks in the end."""

    @abstractmethod
    def finish(self, blocks: Blocks, file: IO[bytes]) -> None:
        """Write the whole file."""


class JsonLinesFormat(AnswerFormat):
    def encode(self, records: Sequence[Record]) -> bytes:
        return "".join(f"{format_json(record)}\n" for record in records).encode()


class ParquetFormat(AssembledFormat):
    """A row group to a block. A column of the source has the type that all its values have in common, or else JSON."""

    def encode(self, records: Sequence[Record]) -> bytes:
        import pyarrow

        names = dict.fromkeys(name for record in records for name in record)
        known = {**self.columns.labels, **self.columns.answers}
        columns = {}
        for name in names:
            values = [_as_lists(record.get(name)) for record in records]
            columns[name] = _build_column(values, known.get(name))
        fields = [pyarrow.field(name, values.type, metadata=mark) for name, (values, mark) in columns.items()]
        batch = pyarrow.record_batch([values for values, _ in columns.values()], schema=pyarrow.schema(fields))
        sink = pyarrow.BufferOutputStream()
        with pyarrow.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        return bytes(sink.getvalue())

    def finish(self, blocks: Blocks, file: IO[bytes]) -> None:
        import pyarrow
        from pyarrow import parquet

        schema = self._unite([pyarrow.ipc.open_stream(block).schema for block in blocks()])
        with parquet.ParquetWriter(file, schema) as writer:
            for block in blocks():
                table = read_block(block)
                columns = [_convert_column(table, wanted) for wanted in schema]
                writer.write_table(pyarrow.table(columns, schema=schema))

    def _unite(self, schemas: Sequence[Any]) -> Any:
        """Labels and the source's columns first; the same whatever the blocks are."""
        import pyarrow

        given = [name for schema in schemas for name in schema.names if name not in self.columns.answers]
        names = dict.fromkeys([*given, *self.columns.labels] if not schemas else given)
        known = {**self.columns.labels, **self.columns.answers}
        fields = []
        for name in [*names, *self.columns.answers]:
            if name in known:
                kind = _build_column([_as_lists(known[name])], None)[0].type
            else:
                kind = _unite_types([schema.field(name) for schema in schemas if name in schema.names])
            fields.append(pyarrow.field(name, kind))
        return pyarrow.schema(fields)


class NpzFormat(ParquetFormat):
    """`embeddings` (N, D) in the order of the texts, and `missing` (N,), which is true for those without one.

    Of token vectors (T, D) `lengths` (N,) is their number in each text. A column of ids gives `ids` (N,).
    """

    def encode(self, records: Sequence[Record]) -> bytes:
        return super().encode([{name: record[name] for name in record if name != _TEXT} for record in records])

    def finish(self, blocks: Blocks, file: IO[bytes]) -> None:
        lengths: list[int] = []
        missing: list[bool] = []
        ids: list[Any] = []
        width = 0
        is_nested = np.ndim(self.columns.answers[VECTORS]) > 1
        for block in blocks():
            table = read_block(block)
            for vectors in table[VECTORS].to_numpy(zero_copy_only=False):
                missing.append(vectors is None)
                lengths.append(int(not is_nested) if vectors is None else len(vectors) if is_nested else 1)
                if vectors is not None and not width:
                    width = len(vectors[0]) if is_nested else len(vectors)
            ids += _list_ids(table)
        with zipfile.ZipFile(file, "w") as archive:
            with archive.open("embeddings.npy", "w", force_zip64=True) as member:
                header = {"descr": "<f4", "fortran_order": False, "shape": (sum(lengths), width)}
                np.lib.format.write_array_header_1_0(member, header)
                for block in blocks():
                    member.write(_list_vectors(read_block(block)[VECTORS], width, is_nested))
            arrays: dict[str, Any] = {"missing": np.array(missing, dtype=bool)}
            if is_nested:
                arrays["lengths"] = np.array(lengths, dtype=np.int64)
            if ids:
                are_numbers = all(type(one) is int for one in ids)
                arrays["ids"] = np.array(ids if are_numbers else ["" if one is None else str(one) for one in ids])
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w") as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)


_FORMATS: dict[str, type[AnswerFormat]] = {
    ".jsonl": JsonLinesFormat,
    ".parquet": ParquetFormat,
    _VECTORS_SUFFIX: NpzFormat,
}


def build_format(path: Path, columns: AnswerColumns) -> AnswerFormat:
    return _FORMATS[path.suffix](columns)


def check_output(path: Path, overwrite: bool, has_vectors: bool, keeps_columns: bool = False) -> None:
    """Refuse before any work what could not be written in the end."""
    if path.suffix not in _FORMATS:
        raise InputError(f"{path} has the suffix '{path.suffix}'; known are {', '.join(_FORMATS)}")
    if path.suffix == _VECTORS_SUFFIX and not has_vectors:
        raise InputError(f"{path} would hold vectors, and these answers are none; write them to .jsonl or .parquet")
    if path.suffix == _VECTORS_SUFFIX and keeps_columns:
        raise InputError(
            f"{path} holds arrays of numbers, no other columns; with --keep-columns use .jsonl or .parquet"
        )
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the name of a file")
    if path.exists() and not overwrite:
        raise InputError(f"{path} exists; choose another {OUT}, or add {OVERWRITE} to replace it")
    if not path.parent.is_dir():
        raise InputError(f"the folder {path.parent} does not exist; make it, or choose another {OUT}")


def read_block(block: bytes) -> Any:
    import pyarrow

    return pyarrow.ipc.open_stream(block).read_all()


def _build_column(values: Sequence[Any], example: Any) -> tuple[Any, dict[bytes, bytes] | None]:
    """An Arrow array, with the mark of one that became JSON."""
    import pyarrow

    if example is not None:
        return pyarrow.array(values, type=_build_column([_as_lists(example)], None)[0].type), None
    try:
        return pyarrow.array(values), None
    except (pyarrow.ArrowException, TypeError, OverflowError):
        return pyarrow.array([_as_text(value) for value in values], type=pyarrow.string()), _AS_JSON


def _unite_types(fields: Sequence[Any]) -> Any:
    """The type of all values of a column of the source; a string where there is none."""
    import pyarrow

    if any(field.metadata for field in fields):
        return pyarrow.string()
    try:
        schemas = [pyarrow.schema([field]) for field in fields]
        return pyarrow.unify_schemas(schemas, promote_options="permissive").field(0).type
    except pyarrow.ArrowException:
        return pyarrow.string()


def _convert_column(table: Any, wanted: Any) -> Any:
    import pyarrow

    if wanted.name not in table.schema.names:
        return pyarrow.nulls(table.num_rows, wanted.type)
    found = table.schema.field(wanted.name)
    if found.type == wanted.type:
        return table[wanted.name]
    values = table[wanted.name].to_pylist()
    if wanted.type == pyarrow.string():
        values = [_as_text(value) for value in values]
    return pyarrow.array(values, type=wanted.type)


def _as_text(value: Any) -> str | None:
    """A text as it is, anything else as JSON."""
    return value if value is None or isinstance(value, str) else format_json(value)


def _as_lists(value: Any) -> Any:
    """Arrow reads arrays of one dimension, and lists of them."""
    return list(value) if isinstance(value, np.ndarray) and value.ndim > 1 else value


def _list_ids(table: Any) -> list[Any]:
    """Of the column that says which record it is, unless that is its number."""
    name = next((name for name in table.schema.names if name != VECTORS), _ROW_COLUMN)
    return [] if name == _ROW_COLUMN else list(table[name].to_pylist())


def _list_vectors(column: Any, width: int, is_nested: bool) -> bytes:
    """Rows of fp32; of a text without a vector NaN, or no rows where there is one to a token."""
    nothing = np.full((0 if is_nested else 1, width), math.nan, np.float32)
    rows = [
        nothing if vectors is None else np.atleast_2d(np.stack(vectors) if is_nested else vectors)
        for vectors in column.to_numpy(zero_copy_only=False)
    ]
    return np.concatenate(rows).astype("<f4").tobytes() if rows else b""


def format_json(record: Any) -> str:
    try:
        text = json.dumps(record, ensure_ascii=False, default=_as_plain, allow_nan=False)
    except ValueError:
        text = json.dumps(_replace_nan(record), ensure_ascii=False, default=_as_plain)
    return escape_json(text)


def _as_plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta | Decimal | UUID):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise InputError(f"a column holds a {type(value).__name__}, which has no JSON form; leave it out of the columns")


def _replace_nan(value: Any) -> Any:
    """JSON has no number that is none."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _replace_nan(one) for key, one in value.items()}
    return [_replace_nan(one) for one in value] if isinstance(value, list | tuple) else value
