"""Text files to documents: one document per line, blank lines skipped."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from maskwright.errors import InputError

_SNIFFED_BYTES = 8192
_MAX_INVALID_SHARE = 0.3
_LONG_LINE_CHARS = 1_000_000


@dataclass
class ReadingReport:
    """What was met while reading, for one warning at the end instead of one per line."""

    num_documents: int = 0
    num_invalid_lines: int = 0
    long_lines: list[str] = field(default_factory=list)
    """Lines so long that the file may be no line-by-line text, as 'line N (M characters)'."""

    def warnings(self, path: Path) -> list[str]:
        warnings = []
        if self.num_invalid_lines:
            warnings.append(
                f"{path}: {self.num_invalid_lines} lines are not valid UTF-8; their bad bytes were replaced by U+FFFD."
                " Convert the file to UTF-8 if these lines matter"
            )
        if self.long_lines:
            warnings.append(
                f"{path}: {self.long_lines[0]} is longer than {_LONG_LINE_CHARS:,} characters; it is split into"
                " samples with nothing lost, but check that the file has one document per line"
            )
        return warnings


def read_lines(path: str | Path, report: ReadingReport | None = None) -> Iterator[str]:
    """The non-blank lines of a UTF-8 text file, one at a time."""
    path = Path(path)
    report = report if report is not None else ReadingReport()
    _check_readable_text(path)
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            if number == 1:
                raw = raw.removeprefix(codecs.BOM_UTF8)
            try:
                line = raw.decode("utf-8")
            except UnicodeDecodeError:
                line = raw.decode("utf-8", errors="replace")
                report.num_invalid_lines += 1
            line = line.strip()
            if len(line) > _LONG_LINE_CHARS:
                report.long_lines.append(f"line {number} ({len(line):,} characters)")
            if line:
                report.num_documents += 1
                yield line
    if not report.num_documents:
        raise InputError(f"{path} holds nothing but blank lines; expected one sentence or document per line")


def _check_readable_text(path: Path) -> None:
    try:
        with path.open("rb") as file:
            start = file.read(_SNIFFED_BYTES)
    except FileNotFoundError as error:
        raise InputError(f"no file at {path}") from error
    except IsADirectoryError as error:
        raise InputError(f"{path} is a folder; give a text file") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    if not start:
        raise InputError(f"{path} is empty; expected one sentence or document per line")
    if b"\0" in start:
        raise InputError(f"{path} is a binary file (it holds NUL bytes); expected UTF-8 text")
    decoded = start.decode("utf-8", errors="replace")
    if decoded.count("\ufffd") > _MAX_INVALID_SHARE * len(decoded):
        raise InputError(f"{path} is not UTF-8 text: most of its first bytes are invalid; convert it to UTF-8")
