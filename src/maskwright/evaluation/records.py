"""Files of evaluation items, one JSON object per line; an invalid line is an error."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from maskwright.errors import InputError
from maskwright.stores.addresses import Place
from maskwright.text.corpus import ReadingReport, decode_lines
from maskwright.text.files import file_format, find_files
from maskwright.text.streams import open_stream
from maskwright.untrusted import shorten


@dataclass(frozen=True)
class Record:
    """The object of a line, and its place."""

    where: str
    """As 'file:line'."""
    name: str
    """The file's name without its suffixes."""
    fields: dict[str, Any]

    def read_text(self, field: str) -> str:
        if field not in self.fields:
            raise self.refuse_missing(f"no field '{field}'")
        return check_text(self.fields[field], field, self.where)

    def read_label(self, field: str) -> str:
        """The name of a group; the file's name if the record has none."""
        return self.read_text(field) if field in self.fields else self.name

    def refuse_missing(self, found: str) -> InputError:
        names = ", ".join(shorten(name) for name in self.fields) or "none"
        return InputError(f"{self.where} has {found}; its fields are {names}: give a file of this suite's format")


def read_records(sources: Sequence[str]) -> list[Record]:
    """The records of files, folders or globs of .jsonl files, in order."""
    records: list[Record] = []
    for source in sources:
        for path in find_files(source):
            if file_format(path) != "jsonl":
                raise InputError(f"{path} is no .jsonl file; this suite reads one JSON object per line")
            records += _read_file(path)
    if not records:
        raise InputError(f"{', '.join(sources)} holds no record; expected one JSON object per line")
    return records


def check_text(value: Any, field: str, where: str) -> str:
    """A text that is not blank and that tokenizers take."""
    if not isinstance(value, str):
        raise InputError(f"'{field}' of {where} holds a {type(value).__name__}; expected a text")
    if not value.strip():
        raise InputError(f"'{field}' of {where} is empty; fill it in or remove the line")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"'{field}' of {where} holds half of a surrogate pair; write the whole character") from error
    return value


def _read_file(path: Place) -> Iterator[Record]:
    report = ReadingReport()
    name = path.name.split(".")[0]
    with open_stream(path) as stream:
        for number, line in decode_lines(stream, report, cut_long_lines=False):
            if report.num_invalid_lines:
                raise InputError(f"{path}:{number} is not valid UTF-8; convert the file to UTF-8")
            if line and not line.isspace():
                yield Record(f"{path}:{number}", name, _parse(line, f"{path}:{number}"))


def _parse(line: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not JSON ({' '.join(str(error).split())}); expected one object a line") from error
    if not isinstance(value, dict):
        raise InputError(f"{where} holds a {type(value).__name__}; expected a JSON object")
    return value
