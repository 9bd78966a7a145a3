"""CoNLL files: a word and its tag to a line, in the first and the last column, and a blank line between sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from maskwright.errors import InputError
from maskwright.tasks.ner.tagging import read_prefixed
from maskwright.text.corpus import ReadingReport, decode_lines
from maskwright.text.files import open_stream

_DOCUMENT_START = "-DOCSTART-"
_COMMENT = "#"
_FEWEST_COLUMNS = 2


@dataclass
class RawSentence:
    """Words and the names of their tags, as a file has them."""

    words: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    """The line of each word."""


def read_conll(path: Path) -> tuple[list[RawSentence], int]:
    """The sentences of a file, and how many lines of it were comments."""
    report = ReadingReport()
    with open_stream(path) as stream:
        lines = [(number, line.rstrip()) for number, line in decode_lines(stream, report, cut_long_lines=False)]
    if report.num_invalid_lines:
        raise InputError(f"{report.invalid_lines[0]} is not valid UTF-8; convert the file to UTF-8")
    reader = _RowReader(path)
    sentences = list(_group(reader, lines))
    return sentences, reader.num_comments


def _group(reader: _RowReader, lines: Sequence[tuple[int, str]]) -> Iterator[RawSentence]:
    sentence = RawSentence()
    for number, line in lines:
        if reader.is_comment(line):
            continue
        cells = reader.split(number, line)
        if cells is None:
            if sentence.words:
                yield sentence
            sentence = RawSentence()
            continue
        sentence.words.append(cells[0])
        sentence.tags.append(cells[-1])
        sentence.lines.append(number)
    if sentence.words:
        yield sentence


class _RowReader:
    """Lines to cells; the first row says how many there are, and whether tabs or blanks stand between them."""

    def __init__(self, path: Path) -> None:
        self.num_comments = 0
        self._path = path
        self._num_columns: int | None = None
        self._has_tabs = False

    def split(self, number: int, line: str) -> list[str] | None:
        """The cells of a row; None where a sentence ends."""
        if not line.strip() or line.startswith(_DOCUMENT_START):
            return None
        if self._num_columns is None:
            self._has_tabs = "\t" in line
        cells = self._cut(line)
        place = f"{self._path}:{number}"
        if len(cells) < _FEWEST_COLUMNS:
            raise InputError(f"{place} has one column, '{line.strip():.40}'; expected a word and its tag")
        if self._num_columns is None:
            self._num_columns = len(cells)
        if len(cells) != self._num_columns:
            raise InputError(
                f"{place} has {len(cells)} columns, the rows before have {self._num_columns}; repair the line"
            )
        if not cells[0] or not cells[-1]:
            raise InputError(f"{place} has no {'tag' if cells[0] else 'word'}; expected a word and its tag")
        return cells

    def is_comment(self, line: str) -> bool:
        """A line with # that is no row: '# id 7' is one, the word '#' with the tag O is not, nor is '#London LOC'."""
        if not line.startswith(_COMMENT):
            return False
        cells = self._cut(line)
        is_row = len(cells) == (self._num_columns or max(len(cells), _FEWEST_COLUMNS))
        is_hashtag = cells[0] != _COMMENT and len(cells) == (self._num_columns or _FEWEST_COLUMNS)
        is_comment = not is_row or (read_prefixed(cells[-1]) is None and not is_hashtag)
        self.num_comments += is_comment
        return is_comment

    def _cut(self, line: str) -> list[str]:
        """A word may hold blanks where tabs separate; other white space than blanks is part of it."""
        has_tabs = self._has_tabs if self._num_columns else "\t" in line
        return [cell.strip() for cell in line.split("\t")] if has_tabs else [cell for cell in line.split(" ") if cell]
