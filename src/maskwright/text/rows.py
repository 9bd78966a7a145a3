"""Sources to rows: every record in its place, also one without text or that cannot be read, with its other columns.

Where texts are learned from, `text/sources.py` leaves such records out.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from maskwright.errors import InputError
from maskwright.sections.data import BUILTIN_CORPUS, SourceConfig
from maskwright.stores.addresses import Place
from maskwright.text.corpus import ReadingReport, decode_lines
from maskwright.text.fasta import fasta_records
from maskwright.text.files import file_format, find_files, measure_files
from maskwright.text.huggingface import dataset_records, is_dataset
from maskwright.text.records import (
    Columns,
    RecordTally,
    check_columns,
    csv_rows,
    describe_no_columns,
    jsonl_records,
    list_strings,
    parquet_batches,
)
from maskwright.text.sources import read_python_documentation
from maskwright.text.streams import ByteStream, open_stream

Values = Mapping[str, Any]


@dataclass(slots=True)
class SourceRow:
    texts: tuple[str | None, ...]
    """One of each column; None where the record has none, or is broken."""
    values: Values | None = None
    """Its columns, at least those that were asked for; None: it has no columns."""
    file: Place | None = None
    """Of a source of several files."""
    share: float | None = None
    """How much of the source lies before the next row, where that is known."""


@dataclass(frozen=True)
class WantedColumns:
    texts: Columns
    others: Collection[str] | None = ()
    """Needed if they are there; None: all."""
    strips: bool = True
    """Whether texts lose their outer blanks."""
    whole_files: bool = False
    """Whether a plain text file is one text rather than one a line."""


def read_rows(source: str, wanted: WantedColumns, report: ReadingReport) -> Iterator[SourceRow]:
    """Every row of a source; lines of text may be blank, those of records are then none.

    Raises `InputError` as `read_source` does; broken records are counted and have no text.
    """
    tally = RecordTally(source, SourceConfig(path=source).max_bad_share, report)
    is_blank = True
    for row in _read_places(source, wanted, tally):
        if all(text and not text.isspace() for text in row.texts):
            is_blank = False
            report.num_documents += 1
        else:
            report.num_blank += 1
        yield row
    tally.check()
    if is_blank:
        raise tally.describe_no_text()


def _read_places(source: str, wanted: WantedColumns, tally: RecordTally) -> Iterator[SourceRow]:
    if source == BUILTIN_CORPUS:
        _refuse_pairs(source, wanted)
        yield from (SourceRow((document,)) for document in read_python_documentation())
    elif is_dataset(source):
        yield from _dataset_rows(source, wanted, tally)
    else:
        files = find_files(source)
        sizes = measure_files(files)
        total = max(1, sum(sizes))
        for number, (file, size) in enumerate(zip(files, sizes, strict=True)):
            before = sum(sizes[:number])
            named = file if len(files) > 1 else None
            for row in _file_rows(file, wanted, tally):
                row.file, row.share = named, (before + size * (row.share or 0.0)) / total
                yield row


def _dataset_rows(source: str, wanted: WantedColumns, tally: RecordTally) -> Iterator[SourceRow]:
    for number, values in enumerate(dataset_records(source), start=1):
        if number == 1:
            check_columns(wanted.texts, values, source)
        tally.num_seen += 1
        yield _take(values, wanted, f"{source}:{number}", tally)


def _file_rows(file: Place, wanted: WantedColumns, tally: RecordTally) -> Iterator[SourceRow]:
    kind = file_format(file)
    if kind == "parquet":
        yield from _parquet_rows(file, wanted, tally)
        return
    with open_stream(file) as stream:
        if kind == "jsonl":
            rows = _jsonl_rows(stream, wanted, tally)
        elif kind in ("csv", "tsv"):
            rows = _csv_rows(stream, wanted, tally, "\t" if kind == "tsv" else ",")
        elif kind == "fasta":
            _refuse_pairs(str(file), wanted)
            rows = _fasta_rows(stream, tally)
        else:
            _refuse_pairs(str(file), wanted)
            rows = iter([SourceRow((read_whole(stream),))]) if wanted.whole_files else line_rows(stream, tally.report)
        for row in rows:
            row.share = stream.share
            yield row


def line_rows(stream: ByteStream, report: ReadingReport) -> Iterator[SourceRow]:
    for _, line in decode_lines(stream, report, cut_long_lines=False):
        yield SourceRow((line.strip(),))


def read_whole(stream: ByteStream) -> str:
    """Plain text, every character in its place."""
    stream.check_text()
    try:
        return b"".join(iter(stream.read, b"")).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{stream.path} is not valid UTF-8 at byte {error.start:,}; convert it to UTF-8") from error


def _jsonl_rows(stream: ByteStream, wanted: WantedColumns, tally: RecordTally) -> Iterator[SourceRow]:
    for number, line, record in jsonl_records(stream, wanted.texts, tally):
        where = f"{stream.path}:{number}"
        if record is None:
            yield _lose(wanted)
            continue
        if "\\u" in line:
            record = _replace_surrogates(record, where, tally.report)
        yield _take(record, wanted, where, tally)


def _fasta_rows(stream: ByteStream, tally: RecordTally) -> Iterator[SourceRow]:
    for record in fasta_records(stream, tally):
        yield SourceRow((None if record.trouble else record.sequence,), {"id": record.name})


def _replace_surrogates(record: dict[str, Any], where: str, report: ReadingReport) -> dict[str, Any]:
    """JSON can spell half of a surrogate pair, which no encoding of text accepts; one character stays one."""
    written = json.dumps(record, ensure_ascii=False)
    whole = written.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if whole == written:
        return record
    report.note_invalid(where)
    repaired: dict[str, Any] = json.loads(whole)
    return repaired


def _csv_rows(stream: ByteStream, wanted: WantedColumns, tally: RecordTally, delimiter: str) -> Iterator[SourceRow]:
    header: list[str] | None = None
    for number, row in csv_rows(stream, wanted.texts, tally, delimiter=delimiter):
        if header is None:
            header = row
        elif row is None:
            yield _lose(wanted)
        else:
            # of columns with one name the first counts
            values = dict(zip(reversed(header), reversed(row), strict=True))
            yield _take({name: values[name] for name in header}, wanted, f"{stream.path}:{number}", tally)


def _parquet_rows(file: Place, wanted: WantedColumns, tally: RecordTally) -> Iterator[SourceRow]:
    number = 0
    for batch, num_rows in parquet_batches(file, wanted.texts, tally, wanted.others):
        columns = {
            name: list_strings(batch[name], file, tally.report) if name in wanted.texts else _list_values(batch[name])
            for name in batch.schema.names
        }
        for row in zip(*columns.values(), strict=True):
            number += 1
            taken = _take(dict(zip(columns, row, strict=True)), wanted, f"{file}:{number}", tally)
            taken.share = number / num_rows
            yield taken


def _list_values(column: Any) -> list[Any]:
    """Python's own values, whose times count microseconds."""
    import pyarrow

    kind = column.type
    if pyarrow.types.is_timestamp(kind) and kind.unit == "ns":
        column = column.cast(pyarrow.timestamp("us", kind.tz), safe=False)
    values: list[Any] = column.to_pylist()
    return values


def _take(values: Values, wanted: WantedColumns, where: str, tally: RecordTally) -> SourceRow:
    texts = []
    for column in wanted.texts:
        text = values.get(column)
        if text is not None and not isinstance(text, str):
            tally.skip(where, f"'{column}' holds a {type(text).__name__}, not a string")
            text = None
        texts.append(text.strip() if text and wanted.strips else text)
    return SourceRow(tuple(texts), values)


def _lose(wanted: WantedColumns) -> SourceRow:
    return SourceRow((None,) * len(wanted.texts), {})


def _refuse_pairs(name: str, wanted: WantedColumns) -> None:
    if len(wanted.texts) > 1:
        raise describe_no_columns(name, wanted.texts[1])
