"""Tables of labelled examples: CSV, TSV, JSON lines and Parquet, Hugging Face datasets, and objects in memory."""

from __future__ import annotations

import csv
import json
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import has_magic
from pathlib import Path
from typing import Any

from maskwright.errors import InputError, InputWarning
from maskwright.stores.addresses import is_store_url
from maskwright.text.corpus import ReadingReport, decode_lines
from maskwright.text.files import file_format, find_on_disk
from maskwright.text.huggingface import dataset_records, is_dataset
from maskwright.text.in_memory import iterate_rows
from maskwright.text.records import RecordTally, parquet_batches
from maskwright.text.streams import MAX_LINE_BYTES, open_stream

_COLA = ("source", "label", "mark", "sentence")
_STS_BENCHMARK = ("genre", "file", "year", "index", "score", "sentence1", "sentence2")
_LARGEST_SIMILARITY = 5.0


@dataclass(frozen=True)
class Record:
    place: str
    """Where it stands, as 'file:line'."""
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    path: Path
    columns: tuple[str, ...]
    records: list[Record]


MEMORY = "memory:"
"""The prefix of names of data in memory, in place of a path."""


def read_table(source: str | Path | Table) -> Table:
    """All records of a file, a glob's files or a dataset, with the columns they have; a table is returned unchanged.

    The published files of CoLA and STS-B need no header.
    """
    if isinstance(source, Table):
        return source
    if is_store_url(str(source)):
        raise InputError(f"labelled examples are read from files on a disk; copy {source} to one first")
    if is_dataset(str(source)):
        return _collect(str(source), dataset_records(str(source)))
    path = Path(source).expanduser()
    if has_magic(path.name) and not path.is_file():
        return _join(path, [_read_file(file) for file in find_on_disk(path)])
    return _read_file(path)


def _join(path: Path, tables: Sequence[Table]) -> Table:
    """One table of several files, which have the same columns in any order."""
    for table in tables[1:]:
        if set(table.columns) != set(tables[0].columns):
            raise InputError(
                f"{tables[0].path} has the columns {', '.join(tables[0].columns)}, and {table.path}"
                f" {', '.join(table.columns)}; {path} is to match files with the same ones"
            )
    return Table(path, tables[0].columns, [record for table in tables for record in table.records])


def _read_file(path: Path) -> Table:
    kind = file_format(path)
    if kind == "parquet":
        return _collect(str(path), _read_parquet(path))
    if kind not in ("csv", "tsv", "jsonl"):
        raise InputError(
            f"{path} has an unknown suffix; labelled examples are read from .csv, .tsv, .jsonl and .parquet"
        )
    report = ReadingReport()
    with open_stream(path) as stream:
        lines = [(number, line.rstrip("\r")) for number, line in decode_lines(stream, report, cut_long_lines=False)]
    if report.num_invalid_lines:
        raise InputError(f"{report.invalid_lines[0]} is not valid UTF-8; convert the file to UTF-8")
    table = _read_json_lines(path, lines) if kind == "jsonl" else _read_separated(path, lines)
    if not table.records:
        raise InputError(f"{path} holds no example; expected one per line")
    return table


def is_in_memory(data: Any) -> bool:
    """Whether examples are objects in memory rather than a name."""
    return not isinstance(data, str | Path)


def as_table(data: Any, name: str, tuple_columns: Mapping[int, Sequence[str]] | None = None) -> Table:
    """Examples in memory: dictionaries or tuples, listed or generated, a data frame or a dataset; places count from 1.

    `tuple_columns` are the columns of tuples by their size.
    """
    rows = enumerate(iterate_rows(data, name), start=1)
    return _collect(name, (_read_row(row, f"{name}:{number}", tuple_columns or {}) for number, row in rows))


def _collect(name: str, rows: Iterable[Mapping[str, Any]]) -> Table:
    records = [Record(f"{name}:{number}", values) for number, values in enumerate(rows, start=1)]
    if not records:
        raise InputError(f"{name} holds no example; expected at least one")
    columns = dict.fromkeys(column for record in records for column in record.values)
    return Table(Path(name), tuple(columns), records)


def _read_row(row: Any, place: str, tuple_columns: Mapping[int, Sequence[str]]) -> dict[str, Any]:
    if isinstance(row, Mapping):
        return {str(column): _to_plain(value) for column, value in row.items()}
    if isinstance(row, tuple | list) and len(row) in tuple_columns:
        return {column: _to_plain(value) for column, value in zip(tuple_columns[len(row)], row, strict=True)}
    forms = [f"({', '.join(columns)})" for columns in tuple_columns.values()]
    found = f"{len(row)} parts" if isinstance(row, tuple | list) else f"a {type(row).__name__}"
    raise InputError(f"{place} has {found}; expected {' or '.join(['a dictionary', *forms])}")


def _to_plain(value: Any) -> Any:
    """Convert array values to plain Python values."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    return list(value) if isinstance(value, tuple) else value


def _read_parquet(path: Path) -> Iterator[Mapping[str, Any]]:
    for batch, _ in parquet_batches(path, (), RecordTally(str(path), 1.0, ReadingReport()), None):
        try:
            yield from batch.to_pylist()
        except UnicodeDecodeError as error:
            raise InputError(f"{path} holds a text that is not UTF-8; write the file again") from error


def _read_json_lines(path: Path, lines: Iterable[tuple[int, str]]) -> Table:
    records = []
    columns: dict[str, None] = {}
    repaired: list[str] = []
    for number, line in lines:
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}:{number} is not JSON ({' '.join(str(error).split())}); repair it") from error
        if not isinstance(values, dict):
            raise InputError(f"{path}:{number} holds a {type(values).__name__}; expected an object such as {{...}}")
        if "\\u" in line:
            written = json.dumps(values, ensure_ascii=False)
            whole = written.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            if whole != written:
                values = json.loads(whole)
                repaired.append(f"{path}:{number}")
        columns |= dict.fromkeys(values)
        records.append(Record(f"{path}:{number}", values))
    if repaired:
        warnings.warn(
            f"{path}: {len(repaired)} lines have half of a surrogate pair (first {repaired[0]}), which is read as"
            " U+FFFD",
            InputWarning,
            stacklevel=3,
        )
    return Table(path, tuple(columns), records)


def _read_separated(path: Path, lines: Sequence[tuple[int, str]]) -> Table:
    """Tabs are the separator if the first line has one, as in the STS benchmark's .csv files."""
    has_tabs = bool(lines) and "\t" in lines[0][1]
    rows = _split_at_tabs(lines) if has_tabs or file_format(path) == "tsv" else _split_at_commas(path, lines)
    first = next(rows, None)
    if first is None:
        raise InputError(f"{path} is empty; expected a header and one example per line")
    published = _find_published(first[1])
    header = published or tuple(name.strip() for name in first[1])
    if len(set(header)) < len(header):
        raise InputError(f"{path}:1 names a column twice: {', '.join(header)}; give each its own name")
    records = [] if published is None else [_build_record(path, first, header, published)]
    records += [_build_record(path, row, header, published) for row in rows]
    return Table(path, header, records)


def _split_at_tabs(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, list[str]]]:
    """Split at tabs; quotes are text, as in GLUE's files, and a field cannot hold a tab."""
    return ((number, line.split("\t")) for number, line in lines if line.strip())


def _split_at_commas(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))  # texts may be long
    reader = csv.reader((f"{line}\n" for _, line in lines), strict=True)
    number = 1
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                yield number, row
            number = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{path}:{number} is no comma-separated record ({error}); repair its quotes") from error


def _find_published(row: Sequence[str]) -> tuple[str, ...] | None:
    """The columns of a published file without a header, recognised by its first record."""
    if len(row) == len(_COLA) and row[1] in ("0", "1") and row[2] in ("", "*"):
        return _COLA
    if len(row) >= len(_STS_BENCHMARK) and row[0].startswith("main-") and _is_similarity(row[4]):
        return _STS_BENCHMARK
    return None


def _is_similarity(text: str) -> bool:
    try:
        value = float(text)
    except ValueError:
        return False
    return math.isfinite(value) and 0.0 <= value <= _LARGEST_SIMILARITY


def _build_record(
    path: Path, row: tuple[int, list[str]], header: Sequence[str], published: tuple[str, ...] | None
) -> Record:
    """Some records of the STS benchmark name their source in further fields."""
    number, cells = row
    is_too_long = len(cells) > len(header) and published is not _STS_BENCHMARK
    if len(cells) < len(header) or is_too_long:
        raise InputError(
            f"{path}:{number} has {len(cells)} fields, the header {len(header)} ({', '.join(header)}); repair the line"
        )
    return Record(f"{path}:{number}", dict(zip(header, cells, strict=False)))
