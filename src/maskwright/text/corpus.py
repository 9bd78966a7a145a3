"""Text files to documents, one per line or one per paragraph, and the report on what reading met."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from maskwright.errors import InputError
from maskwright.text import sentences
from maskwright.text.streams import ByteStream, open_stream, split_lines

_MAX_EXAMPLES = 3


@dataclass
class ReadingReport:
    """Counts problems while reading, for one warning at the end, with the first few examples."""

    keeps_long_texts: bool = False
    """Keep long texts whole, for inference."""
    num_documents: int = 0
    num_blank: int = 0
    """Lines or records without text; normal, so no warning."""
    num_invalid_lines: int = 0
    invalid_lines: list[str] = field(default_factory=list)
    """Where text was no valid UTF-8, as 'file:line'."""
    num_bad_records: int = 0
    bad_records: list[str] = field(default_factory=list)
    """Records without the text they should hold, as 'file:line reason'."""
    num_long_lines: int = 0
    long_lines: list[str] = field(default_factory=list)
    """Texts so long that they were cut into documents, as 'file:line'."""
    _last_long: str = ""

    def take(self, text: str) -> str | None:
        """The stripped text, counted; None if it is empty."""
        text = text.strip()
        if not text:
            self.num_blank += 1
            return None
        self.num_documents += 1
        return text

    def note_invalid(self, where: str) -> None:
        self.num_invalid_lines += 1
        if len(self.invalid_lines) < _MAX_EXAMPLES:
            self.invalid_lines.append(where)

    def note_bad_record(self, example: str) -> None:
        self.num_bad_records += 1
        if len(self.bad_records) < _MAX_EXAMPLES:
            self.bad_records.append(example)

    def note_long(self, where: str) -> None:
        """Count a text that is cut; its pieces come one after another, and the first is counted."""
        if where == self._last_long:
            return
        self._last_long = where
        self.num_long_lines += 1
        if len(self.long_lines) < _MAX_EXAMPLES:
            self.long_lines.append(where)

    def merge(self, other: ReadingReport) -> None:
        """Add what was met in another part, which is read after this one."""
        for name in ("num_documents", "num_blank", "num_invalid_lines", "num_bad_records", "num_long_lines"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("invalid_lines", "bad_records", "long_lines"):
            examples = getattr(self, name)
            examples += getattr(other, name)[: _MAX_EXAMPLES - len(examples)]

    def warnings(self, path: str | Path | None = None) -> list[str]:
        """One sentence per kind of problem, starting with `name`, if given."""
        name = "" if path is None else f"{path}: "
        warnings = []
        if self.num_invalid_lines:
            warnings.append(
                f"{name}{self.num_invalid_lines:,} lines are not valid UTF-8 (first {', '.join(self.invalid_lines)});"
                " their bad bytes were replaced by U+FFFD. Convert the file to UTF-8 if these lines matter"
            )
        if self.num_bad_records:
            warnings.append(
                f"{name}{self.num_bad_records:,} broken records were skipped (first {'; '.join(self.bad_records)})."
                " Repair them if they matter"
            )
        if self.num_long_lines:
            warnings.append(
                f"{name}{self.num_long_lines:,} texts of more than {sentences.MAX_DOCUMENT_CHARS:,} characters were cut"
                f" into documents of at most that many (first {', '.join(self.long_lines)}); nothing is lost, but check"
                " that the file has one document per line or record"
            )
        return warnings


def read_lines(path: str | Path, report: ReadingReport | None = None) -> Iterator[str]:
    """The non-blank lines of a UTF-8 text file, plain or compressed, one at a time; memory does not grow with it."""
    path = Path(path)
    is_blank = True
    with open_stream(path) as stream:
        for document in text_lines(stream, report if report is not None else ReadingReport()):
            is_blank = False
            yield document
    if not stream.num_bytes:
        raise InputError(f"{path} is empty; expected one sentence or document per line")
    if is_blank:
        raise InputError(f"{path} holds nothing but blank lines; expected one sentence or document per line")


def text_lines(stream: ByteStream, report: ReadingReport) -> Iterator[str]:
    """A document per non-blank line, or several for a long one."""
    last = 0
    longest = sentences.MAX_DOCUMENT_CHARS
    for number, line in decode_lines(stream, report, cut_long_lines=not report.keeps_long_texts):
        is_long = (number == last or len(line) > longest) and not report.keeps_long_texts
        last = number
        if is_long:
            report.note_long(f"{stream.path}:{number}")
            yield from filter(None, map(report.take, sentences.cut_long_text(line)))
        elif (document := report.take(line)) is not None:
            yield document


def text_paragraphs(stream: ByteStream, report: ReadingReport) -> Iterator[str]:
    """A document per run of lines between blank ones, its inner newlines kept, or several for a long one."""
    lines: list[str] = []
    num_chars = 0
    for number, line in decode_lines(stream, report, cut_long_lines=True):
        line = line.rstrip()
        if line:
            lines.append(line)
            num_chars += len(line) + 1
        while num_chars > sentences.MAX_DOCUMENT_CHARS + 1:
            report.note_long(f"{stream.path}:{number}")
            text = "\n".join(lines)
            place = sentences.find_cut(text)
            if document := report.take(text[:place]):
                yield document
            lines = [rest] if (rest := text[place:].lstrip()) else []
            num_chars = len(rest) + 1
        if lines and not line:
            report.num_documents += 1
            yield "\n".join(lines).strip()
            lines, num_chars = [], 0
    if lines:
        report.num_documents += 1
        yield "\n".join(lines).strip()


def decode_lines(stream: ByteStream, report: ReadingReport, *, cut_long_lines: bool) -> Iterator[tuple[int, str]]:
    """(number, line) for every line of UTF-8 text; invalid bytes become U+FFFD and their lines are counted."""
    stream.check_text()
    for number, raw in split_lines(stream, cut_long_lines=cut_long_lines):
        stream.num_taken += len(raw) + 1
        try:
            yield number, raw.decode("utf-8")
        except UnicodeDecodeError:
            report.note_invalid(f"{stream.path}:{number}")
            yield number, raw.decode("utf-8", errors="replace")
