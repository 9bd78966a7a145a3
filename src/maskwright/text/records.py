"""Files of records to the texts in one or two of their columns: JSON lines, comma- or tab-separated values, Parquet."""

from __future__ import annotations

import csv
import json
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from maskwright.errors import InputError
from maskwright.storage import naming
from maskwright.stores.addresses import Place
from maskwright.stores.objects import measure_file
from maskwright.text import sentences
from maskwright.text.corpus import ReadingReport, decode_lines
from maskwright.text.streams import COMPRESSIONS, MAX_LINE_BYTES, ByteStream, check_expansion, open_file, open_stream

_MIN_RECORDS = 100
_EARLY_STOP = 100
_MAX_COLUMNS_SHOWN = 20
_MAX_COLUMN_CHARS = 40
_BATCH_ROWS = 128
_BATCH_BYTES = 32 << 20
_COPY_BYTES = 1 << 20

Columns = Sequence[str]
Texts = tuple[str, ...]
"""A record's texts, one of each column; none is blank."""


@dataclass
class RecordTally:
    """Counts valid and broken records of a source; too large a share of broken ones is an `InputError`."""

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

    def describe_no_text(self) -> InputError:
        broken = f" but {self.num_bad} broken records, first {self.report.bad_records[0]}" if self.num_bad else ""
        return InputError(f"{self.name} is empty: it holds no text{broken}; expected at least one document")

    def check(self) -> None:
        if self.num_seen >= _MIN_RECORDS and self.num_bad > self.max_bad_share * self.num_seen:
            raise InputError(
                f"{self.name}: {self.num_bad:,} of the first {self.num_seen:,} records are broken, first"
                f" {self.report.bad_records[0]}; repair them or raise max_bad_share"
                f" (now {self.max_bad_share:g})"
            )


def jsonl_texts(stream: ByteStream, columns: Columns, tally: RecordTally) -> Iterator[Texts]:
    """The texts of a JSON object per line; the first object decides whether the columns are there."""
    for number, line, record in jsonl_records(stream, columns, tally):
        texts = None if record is None else take_texts(record, columns, stream.path, number, tally)
        if texts is not None:
            yield replace_surrogates(texts, f"{stream.path}:{number}", tally.report) if "\\u" in line else texts


def jsonl_records(
    stream: ByteStream, columns: Columns, tally: RecordTally
) -> Iterator[tuple[int, str, dict[str, Any] | None]]:
    """(number, line, object) of every line that is not blank; None, and counted, for one that is broken."""
    is_first = True
    for number, line in decode_lines(stream, tally.report, cut_long_lines=False):
        if not line or line.isspace():
            continue
        tally.num_seen += 1
        record = None
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            tally.skip(f"{stream.path}:{number}", f"is not JSON ({' '.join(str(error).split())})")
        else:
            if not isinstance(record, dict):
                tally.skip(f"{stream.path}:{number}", f"holds a {type(record).__name__}, not an object")
                record = None
            elif is_first:
                check_columns(columns, record, stream.path)
                is_first = False
        yield number, line, record


def csv_texts(stream: ByteStream, columns: Columns, tally: RecordTally, *, delimiter: str) -> Iterator[Texts]:
    """The texts of a table with a header."""
    rows = csv_rows(stream, columns, tally, delimiter=delimiter)
    places: list[int] | None = None
    for number, row in rows:
        if row is None:
            continue
        if places is None:
            places = [row.index(column) for column in columns]
            continue
        texts = strip_texts([row[place] for place in places], columns, stream.path, number, tally)
        if texts is not None:
            yield texts


def csv_rows(
    stream: ByteStream, columns: Columns, tally: RecordTally, *, delimiter: str
) -> Iterator[tuple[int, list[str] | None]]:
    """(number, fields) of the header and then of every row that is not blank; None, and counted, for a broken one.

    Tab-separated fields are never quoted, as IANA defines the format.
    """
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
            if row is not None:
                header = [name.strip() for name in row]
                check_columns(columns, header, stream.path)
                yield number, header
            continue
        if row is not None:
            tally.num_seen += 1
            if len(row) != len(header):
                tally.skip(f"{stream.path}:{number}", f"has {len(row)} fields, not {len(header)}")
                row = None
        yield number, row


def _numbered_rows(rows: Any, path: Place, tally: RecordTally) -> Iterator[tuple[int, list[str] | None]]:
    """Non-blank rows with the number of their first line; None, and counted, for what is no row."""
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
            yield number, None
            continue
        if row:
            yield number, row


def parquet_texts(path: Place, columns: Columns, tally: RecordTally) -> Iterator[Texts]:
    """The texts of string columns, batch by batch."""
    number = 0
    for batch, _ in parquet_batches(path, columns, tally):
        for values in zip(*(list_strings(batch[column], path, tally.report) for column in columns), strict=True):
            number += 1
            texts = strip_texts(values, columns, path, number, tally)
            if texts is not None:
                yield texts


def parquet_batches(
    path: Place, columns: Columns, tally: RecordTally, others: Collection[str] | None = ()
) -> Iterator[tuple[Any, int]]:
    """Batches of string columns, and of `others` that are there (None: all), with the number of rows in the file.

    A compressed file is first unpacked into a temporary one.
    """
    import pyarrow

    num_bytes = 0
    with _seekable(path) as file:
        try:
            for batch, num_rows in _read_batches(file, columns, others, path):
                num_bytes += batch.nbytes
                check_expansion(path, measure_file(file), num_bytes)
                tally.num_seen += len(batch)
                yield batch, num_rows
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"{path} is damaged or no Parquet file: {' '.join(str(error).split())}; write or fetch it again"
            ) from error


def _seekable(path: Place) -> IO[bytes]:
    if path.suffix.lower() not in COMPRESSIONS:
        return open_file(path, _COPY_BYTES)
    unpacked = tempfile.TemporaryFile()  # noqa: SIM115 (the caller closes it)
    with open_stream(path) as stream:
        while chunk := stream.read(_COPY_BYTES):
            with naming(Path(tempfile.gettempdir())):  # a full disk is said to be this one
                unpacked.write(chunk)
                unpacked.flush()
    unpacked.seek(0)
    return unpacked


def _read_batches(
    file: IO[bytes], columns: Columns, others: Collection[str] | None, path: Place
) -> Iterator[tuple[Any, int]]:
    import pyarrow
    from pyarrow import parquet

    # A buffered read keeps a page of a column in memory instead of its whole part of a row group.
    table = parquet.ParquetFile(file, buffer_size=_COPY_BYTES, pre_buffer=False)
    check_columns(columns, table.schema_arrow.names, path)
    for column in columns:
        kind = table.schema_arrow.field(column).type
        kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
        if kind not in (pyarrow.string(), pyarrow.large_string(), pyarrow.string_view()):
            raise InputError(f"column '{column}' of {path} holds {kind}; expected strings: name another column")
    mean_bytes = sum(table.metadata.row_group(group).total_byte_size for group in range(table.num_row_groups)) // max(
        1, table.metadata.num_rows
    )
    num_rows = min(_BATCH_ROWS, max(1, _BATCH_BYTES // max(1, mean_bytes)))
    names = [*columns, *(name for name in table.schema_arrow.names if others is None or name in others)]
    for batch in table.iter_batches(batch_size=num_rows, columns=list(dict.fromkeys(names)), use_threads=False):
        yield batch, table.metadata.num_rows


def list_strings(values: Any, path: Place, report: ReadingReport) -> list[str | None]:
    import pyarrow

    try:
        return values.to_pylist()
    except UnicodeDecodeError:
        return [_decode(raw, path, report) for raw in values.cast(pyarrow.binary()).to_pylist()]


def _decode(raw: bytes | None, path: Place, report: ReadingReport) -> str | None:
    if raw is None:
        return None
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        report.note_invalid(str(path))
        return raw.decode("utf-8", errors="replace")


def take_texts(
    record: Mapping[str, Any], columns: Columns, path: Place | str, number: int, tally: RecordTally
) -> Texts | None:
    """The record's texts; None, and counted, if one is blank or not there."""
    texts = []
    for column in columns:
        text = record.get(column)
        if not isinstance(text, str):
            found = f"holds a {type(text).__name__}" if column in record else "is missing"
            tally.skip(f"{path}:{number}", f"'{column}' {found}, not a string")
            return None
        texts.append(text)
    return strip_texts(texts, columns, path, number, tally)


def strip_texts(
    texts: Sequence[str | None], columns: Columns, path: Place | str, number: int, tally: RecordTally
) -> Texts | None:
    """Texts without outer blanks, counted as one document; None if one is blank, and half a pair is broken."""
    stripped = tuple([text.strip() if text else "" for text in texts])
    if "" not in stripped:
        tally.report.num_documents += 1
        is_long = len(stripped) == 1 and len(stripped[0]) > sentences.MAX_DOCUMENT_CHARS
        if is_long and not tally.report.keeps_long_texts:
            tally.report.note_long(f"{path}:{number}")
        return stripped
    if any(stripped):
        tally.skip(f"{path}:{number}", f"'{columns[stripped.index('')]}' is blank")
    else:
        tally.report.num_blank += 1
    return None


def replace_surrogates(texts: Texts, where: str, report: ReadingReport) -> Texts:
    """Replace half surrogate pairs, which JSON can hold and no text encoding accepts."""
    try:
        for text in texts:
            text.encode("utf-8")
    except UnicodeEncodeError:
        report.note_invalid(where)
        return tuple(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for text in texts)
    return texts


def describe_no_columns(path: Place | str, second_column: str) -> InputError:
    return InputError(
        f"{path} has no columns, so no second_column '{second_column}'; give pairs as .jsonl, .csv, .tsv, .parquet or a"
        " dataset"
    )


def check_columns(columns: Columns, found: Iterable[str], path: Place | str) -> None:
    """Refuse a table without one of the columns, with the names it has."""
    names = list(found)
    for column, option in zip(columns, ("column", "second_column"), strict=False):
        if column not in names:
            shown = ", ".join(f"'{name[:_MAX_COLUMN_CHARS]}'" for name in names[:_MAX_COLUMNS_SHOWN])
            more = ", ..." if len(names) > _MAX_COLUMNS_SHOWN else ""
            raise InputError(
                f"{path} has no column '{column}'; it has {shown}{more}: choose one with `{option}`, as in"
                f" '{{path: {path}, {option}: NAME}}'"
            )
