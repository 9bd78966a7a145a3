"""Files of records to the texts in one of their columns: JSON lines, comma- or tab-separated values, Parquet."""

from __future__ import annotations

import csv
import json
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from maskwright.errors import InputError
from maskwright.text.corpus import ReadingReport, decode_lines
from maskwright.text.files import COMPRESSIONS, MAX_LINE_BYTES, ByteStream, open_file, open_stream

_MIN_RECORDS = 100
_EARLY_STOP = 100
_MAX_COLUMNS_SHOWN = 20
_MAX_COLUMN_CHARS = 40
_BATCH_ROWS = 128
_COPY_BYTES = 1 << 20


@dataclass
class RecordTally:
    """Good and broken records of one source; too large a share of broken ones is an `InputError`."""

    name: str
    max_bad_share: float
    report: ReadingReport
    num_seen: int = 0
    num_bad: int = 0

    def skip(self, where: str, reason: str) -> None:
        """Count a broken record; after the first hundred of them the share is watched, not only at the end."""
        self.num_bad += 1
        self.report.note_bad_record(f"{where} {reason}")
        if self.num_bad >= _EARLY_STOP:
            self.check()

    def check(self) -> None:
        if self.num_seen >= _MIN_RECORDS and self.num_bad > self.max_bad_share * self.num_seen:
            raise InputError(
                f"{self.name}: {self.num_bad:,} of the first {self.num_seen:,} records are broken, first"
                f" {self.report.bad_records[0]}; repair them or raise max_bad_share"
                f" (now {self.max_bad_share:g})"
            )


def jsonl_texts(stream: ByteStream, column: str, tally: RecordTally) -> Iterator[str]:
    """The texts of a JSON object per line; the first object decides whether the column is there."""
    is_first = True
    for number, line in decode_lines(stream, tally.report, cut_long_lines=False):
        if not line or line.isspace():
            continue
        tally.num_seen += 1
        where = f"{stream.path}:{number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            tally.skip(where, f"is not JSON ({' '.join(str(error).split())})")
            continue
        if not isinstance(record, dict):
            tally.skip(where, f"holds a {type(record).__name__}, not an object")
            continue
        if is_first:
            check_column(column, record, stream.path)
            is_first = False
        text = take_text(record, column, where, tally)
        if text is not None:
            yield replace_surrogates(text, where, tally.report) if "\\u" in line else text


def csv_texts(stream: ByteStream, column: str, tally: RecordTally, *, delimiter: str) -> Iterator[str]:
    """The texts of a table with a header; tab-separated fields are never quoted, as IANA defines the format."""
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))
    lines = (f"{line}\n" for _, line in decode_lines(stream, tally.report, cut_long_lines=False))
    rows = (
        csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE, strict=True)
        if delimiter == "\t"
        else csv.reader(lines, delimiter=delimiter, strict=True)
    )
    header: list[str] = []
    for number, row in _numbered_rows(rows, stream.path, tally):
        if not header:
            header = [name.strip() for name in row]
            check_column(column, header, stream.path)
            place = header.index(column)
        elif len(row) != len(header):
            tally.num_seen += 1
            tally.skip(f"{stream.path}:{number}", f"has {len(row)} fields, not {len(header)}")
        else:
            tally.num_seen += 1
            text = tally.report.take(row[place])
            if text is not None:
                yield text


def _numbered_rows(rows: Any, path: Path, tally: RecordTally) -> Iterator[tuple[int, list[str]]]:
    """Non-blank rows with the number of their first line."""
    while True:
        number = rows.line_num + 1
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            if "unexpected end" in str(error):
                raise InputError(f"{path}:{number} opens a quote that is never closed; close or double it") from error
            tally.num_seen += 1
            tally.skip(f"{path}:{number}", f"is not a row ({error})")
            continue
        if row:
            yield number, row


def parquet_texts(path: Path, column: str, report: ReadingReport) -> Iterator[str]:
    """The texts of a string column, batch by batch; a compressed file is first unpacked into a temporary one."""
    import pyarrow

    with _seekable(path) as file:
        try:
            for batch in _parquet_batches(file, column, path):
                for value in _strings(batch, path, report):
                    text = report.take(value) if value is not None else None
                    if text is not None:
                        yield text
        except (pyarrow.ArrowException, OSError) as error:
            raise InputError(
                f"{path} is damaged or no Parquet file: {' '.join(str(error).split())}; write or fetch it again"
            ) from error


def _seekable(path: Path) -> IO[bytes]:
    if path.suffix.lower() not in COMPRESSIONS:
        return open_file(path)
    unpacked = tempfile.TemporaryFile()  # noqa: SIM115 (the caller closes it)
    with open_stream(path) as stream:
        while chunk := stream.read(_COPY_BYTES):
            unpacked.write(chunk)
    unpacked.seek(0)
    return unpacked


def _parquet_batches(file: IO[bytes], column: str, path: Path) -> Iterator[Any]:
    import pyarrow
    from pyarrow import parquet

    # A buffered read keeps a page of the column in memory instead of its whole part of a row group.
    table = parquet.ParquetFile(file, buffer_size=_COPY_BYTES, pre_buffer=False)
    check_column(column, table.schema_arrow.names, path)
    kind = table.schema_arrow.field(column).type
    kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    if kind not in (pyarrow.string(), pyarrow.large_string(), pyarrow.string_view()):
        raise InputError(f"column '{column}' of {path} holds {kind}; expected strings: name another column")
    for batch in table.iter_batches(batch_size=_BATCH_ROWS, columns=[column], use_threads=False):
        yield batch.column(0)


def _strings(values: Any, path: Path, report: ReadingReport) -> list[str | None]:
    import pyarrow

    try:
        return values.to_pylist()
    except UnicodeDecodeError:
        return [_decode(raw, path, report) for raw in values.cast(pyarrow.binary()).to_pylist()]


def _decode(raw: bytes | None, path: Path, report: ReadingReport) -> str | None:
    if raw is None:
        return None
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        report.note_invalid(str(path))
        return raw.decode("utf-8", errors="replace")


def take_text(record: dict[str, Any], column: str, where: str, tally: RecordTally) -> str | None:
    """The record's text; None, and counted, if it is blank or not there."""
    text = record.get(column)
    if not isinstance(text, str):
        found = f"holds a {type(text).__name__}" if column in record else "is missing"
        tally.skip(where, f"'{column}' {found}, not a string")
        return None
    return tally.report.take(text)


def replace_surrogates(text: str, where: str, report: ReadingReport) -> str:
    """JSON can spell half of a surrogate pair, which no encoding of text accepts."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        report.note_invalid(where)
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def check_column(column: str, columns: Iterable[str], path: Path | str) -> None:
    """Refuse a table without the column, with the names it has."""
    names = list(columns)
    if column not in names:
        shown = ", ".join(f"'{name[:_MAX_COLUMN_CHARS]}'" for name in names[:_MAX_COLUMNS_SHOWN])
        more = ", ..." if len(names) > _MAX_COLUMNS_SHOWN else ""
        raise InputError(f"{path} has no column '{column}'; it has {shown}{more}: choose one with `column`")
