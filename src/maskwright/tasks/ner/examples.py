"""Sentences whose words have tags, from CoNLL files and from records with a list of words and a list of tags."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from maskwright.errors import InputError
from maskwright.suggestions import name_option
from maskwright.tasks.config import TaskConfig
from maskwright.tasks.ner.tags import (
    OUTSIDE,
    Scheme,
    Tag,
    convert_tags,
    find_break,
    find_entities,
    list_candidates,
    read_prefixed,
)
from maskwright.tasks.tables import Record, Table, read_table
from maskwright.text.corpus import ReadingReport, decode_lines
from maskwright.text.files import file_format
from maskwright.text.huggingface import is_dataset
from maskwright.text.streams import open_stream

SCHEMES = {"io": Scheme.IO, "bio": Scheme.BIO, "bioes": Scheme.BIOES}
"""What tags can be converted to."""
_LOOKS_PREFIXED = re.compile(r"[A-Za-z]-.*")
_DOCUMENT_START = "-DOCSTART-"
_COMMENT = "#"
_FEWEST_COLUMNS = 2
_WORDS = ("words", "tokens")
_TAGS = ("tags", "ner_tags", "labels")


@dataclass(frozen=True)
class TaggedSentence:
    source: str
    words: tuple[str, ...]
    tags: tuple[Tag, ...]
    lines: tuple[int, ...]
    """The line of each word."""

    @property
    def place(self) -> str:
        return self.place_of(0)

    @property
    def content(self) -> tuple[Any, ...]:
        """The content that a model learns from, for hashes."""
        return self.words, tuple(map(str, self.tags))

    def place_of(self, word: int) -> str:
        """Where a word stands, as 'file:line'."""
        return f"{self.source}:{self.lines[word]}"

    def take(self, words: Sequence[int]) -> TaggedSentence:
        """Some of its words."""
        return TaggedSentence(
            self.source,
            tuple(self.words[word] for word in words),
            tuple(self.tags[word] for word in words),
            tuple(self.lines[word] for word in words),
        )


@dataclass(frozen=True)
class TaggedFile:
    path: Path
    examples: list[TaggedSentence]
    scheme: Scheme
    """Of the examples."""
    written: str
    """What the scheme of the file itself is called."""
    num_comments: int
    num_joined: int = 0
    """Entities that IO could not tell from the one before."""

    def describe(self) -> str:
        num_words = sum(len(example.words) for example in self.examples)
        num_entities = _count_entities(self.examples)
        text = f"{len(self.examples):,} sentences of {self.path}, {num_words:,} words, {num_entities:,} entities"
        text += f", {self.written} tags"
        if self.written != self.scheme.value:
            text += f" converted to {self.scheme.value}"
        if self.num_joined:
            text += f"; {self.num_joined:,} entities become one with the one before"
        return text + (f"; {self.num_comments:,} comments left out" if self.num_comments else "")

    def check_same_form(self, other: TaggedFile) -> None:
        """Refuse a held-out file whose tags are of another scheme."""
        for example in other.examples:
            word = find_break(example.tags, self.scheme)
            if word is not None:
                raise InputError(
                    f"{describe_tag(example, word)}, but {self.path} has {self.written} tags, which have none there;"
                    " repair it, or convert both files with --tag-scheme bio"
                )


def read_tagged_file(source: str | Path | Table, config: TaskConfig) -> TaggedFile:
    """The sentences of a file in the scheme of the file, or in the one asked for."""
    path = source.path if isinstance(source, Table) else Path(source).expanduser()
    raw, num_comments = _read_raw(source if isinstance(source, Table) else path, config)
    if not raw:
        raise InputError(f"{path} holds no sentence; expected a word and its tag in every line")
    examples = _build_examples(path, raw)
    if not _count_entities(examples):
        num_words = sum(len(example.words) for example in examples)
        raise InputError(f"{path} has no entity: all of its {num_words:,} words are tagged O; check the last column")
    rows = [example.tags for example in examples]
    scheme = find_scheme(rows)
    if config.tag_scheme is not None:
        return _convert(path, examples, num_comments, scheme, SCHEMES[config.tag_scheme])
    if scheme is None:
        raise InputError(_explain_mixture(path, examples))
    return TaggedFile(path, examples, scheme, scheme.value, num_comments)


def describe_tag(example: TaggedSentence, word: int) -> str:
    """Where a tag stands, and behind which; the one behind the last word is the end."""
    if word == len(example.tags):
        return f"{example.place_of(word - 1)} has {example.tags[-1]} at the end of its sentence"
    before = example.tags[word - 1] if word else OUTSIDE
    return f"{example.place_of(word)} has {example.tags[word]} behind {before}"


def _read_raw(path: Path | Table, config: TaskConfig) -> tuple[list[RawSentence], int]:
    if config.second_column is not None:
        raise InputError("--second-column is for pairs of texts; ner reads words and tags: leave it out")
    if isinstance(path, Table) or is_dataset(str(path)) or file_format(path) in ("jsonl", "parquet"):
        return read_tagged_records(path, config.text_column, config.label_column), 0
    kind = file_format(path)
    if kind == "csv":
        raise InputError(f"{path} is a .{kind} file; words and tags are read from CoNLL files, .jsonl and .parquet")
    for option, name in (("text", config.text_column), ("label", config.label_column)):
        if name is not None:
            raise InputError(
                f"--{option}-column is for .jsonl; {path} is read as CoNLL, the word in the first column and the tag in"
                " the last: leave it out"
            )
    return read_conll(path)


def _build_examples(path: Path, raw: Sequence[RawSentence]) -> list[TaggedSentence]:
    tags = read_tags(path, raw)
    return [
        TaggedSentence(str(path), tuple(one.words), tuple(row), tuple(one.lines))
        for one, row in zip(raw, tags, strict=True)
    ]


def _convert(
    path: Path, examples: list[TaggedSentence], num_comments: int, found: Scheme | None, wanted: Scheme
) -> TaggedFile:
    converted = [replace(example, tags=tuple(convert_tags(example.tags, wanted))) for example in examples]
    num_joined = _count_entities(examples) - _count_entities(converted)
    written = "irregular" if found is None else found.value
    return TaggedFile(path, converted, wanted, written, num_comments, num_joined)


def _explain_mixture(path: Path, examples: Sequence[TaggedSentence]) -> str:
    """Where the likeliest scheme is broken."""
    letters = {tag.letter for example in examples for tag in example.tags}
    scheme = Scheme.BIOES if {"E", "S"} & letters else Scheme.BILOU if {"L", "U"} & letters else Scheme.BIO
    broken = [(example, word) for example in examples if (word := find_break(example.tags, scheme)) is not None]
    example, word = broken[0]
    more = f", and {len(broken) - 1:,} more sentences are like it" if len(broken) > 1 else ""
    return (
        f"{describe_tag(example, word)}, which {scheme.value} tags do not have{more}; repair it, or let --tag-scheme"
        " bio take entities as the CoNLL script reads them"
    )


def _count_entities(examples: Sequence[TaggedSentence]) -> int:
    return sum(len(find_entities(example.tags)) for example in examples)


def read_tags(path: Path, raw: Sequence[RawSentence]) -> list[list[Tag]]:
    """All with a letter before the type, or all bare types."""
    first: dict[str, str] = {}
    for sentence in raw:
        for name, line in zip(sentence.tags, sentence.lines, strict=True):
            first.setdefault(name, f"{path}:{line}")
    tags = _read_names(first)
    return [[tags[name] for name in sentence.tags] for sentence in raw]


def _read_names(places: dict[str, str]) -> dict[str, Tag]:
    """Names to tags, each with the place where it first stands."""
    tags: dict[str, Tag] = {}
    for name, place in places.items():
        tag = read_prefixed(name)
        if tag is None and _LOOKS_PREFIXED.fullmatch(name):
            raise InputError(f"{place} has the tag '{name}'; expected O, or one of B, I, E, S, L, U and a type: B-PER")
        tags[name] = tag or Tag("", name)
    bare = [name for name, tag in tags.items() if not tag.letter]
    prefixed = [name for name, tag in tags.items() if tag.letter and tag.is_inside]
    if bare and prefixed:
        raise InputError(
            f"{places[bare[0]]} has the tag '{bare[0]}' without a prefix, but {places[prefixed[0]]} has"
            f" '{prefixed[0]}'; write all tags in one way"
        )
    return tags


def find_scheme(rows: Iterable[Sequence[Tag]]) -> Scheme | None:
    """The first scheme that all rows keep to; None where there is none."""
    different = list(dict.fromkeys(map(tuple, rows)))
    candidates = list_candidates(tag.letter for row in different for tag in row)
    return next((one for one in candidates if all(find_break(row, one) is None for row in different)), None)


@dataclass
class RawSentence:
    """Words and the names of their tags, as a file has them."""

    words: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    """The line of each word."""


Choose = Callable[[Sequence[str]], tuple[str, str] | None]
"""The word and the tag of a row's cells; None for a row to leave out."""


def _choose_ends(cells: Sequence[str]) -> tuple[str, str]:
    return cells[0], cells[-1]


def read_conll(path: Path, choose: Choose = _choose_ends) -> tuple[list[RawSentence], int]:
    """The sentences of a file, and how many lines of it were comments."""
    report = ReadingReport()
    with open_stream(path) as stream:
        lines = [(number, line.rstrip()) for number, line in decode_lines(stream, report, cut_long_lines=False)]
    if report.num_invalid_lines:
        raise InputError(f"{report.invalid_lines[0]} is not valid UTF-8; convert the file to UTF-8")
    reader = _RowReader(path)
    sentences = list(_group(reader, lines, choose))
    return sentences, reader.num_comments


def _group(reader: _RowReader, lines: Sequence[tuple[int, str]], choose: Choose) -> Iterator[RawSentence]:
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
        chosen = choose(cells)
        if chosen is not None:
            sentence.words.append(chosen[0])
            sentence.tags.append(chosen[1])
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


def read_tagged_records(source: Path | Table, words_column: str | None, tags_column: str | None) -> list[RawSentence]:
    """Records without a word are left out."""
    table = read_table(source)
    words = _choose(table.path, table.columns, words_column, _WORDS, "text")
    tags = _choose(table.path, table.columns, tags_column, _TAGS, "label")
    sentences = [_read_record(record, words, tags) for record in table.records]
    return [sentence for sentence in sentences if sentence.words]


def _choose(path: Path, found: Sequence[str], named: str | None, usual: Sequence[str], option: str) -> str:
    chosen = named if named is not None else next((name for name in usual if name in found), None)
    if chosen is None or chosen not in found:
        wanted = f"no column '{named}'" if named is not None else f"none of the columns {', '.join(usual)}"
        raise InputError(
            f"{path} has {wanted}; it has {', '.join(found)}: choose one with {name_option(f'{option}_column')}"
        )
    return chosen


def _read_record(record: Record, words_column: str, tags_column: str) -> RawSentence:
    words, tags = (_read_list(record, column) for column in (words_column, tags_column))
    if len(words) != len(tags):
        raise InputError(f"{record.place} has {len(words)} words and {len(tags)} tags; expected a tag for each word")
    line = int(record.place.rpartition(":")[2])
    return RawSentence(words, tags, [line] * len(words))


def _read_list(record: Record, column: str) -> list[str]:
    values: Any = record.values.get(column)
    if not isinstance(values, list):
        raise InputError(
            f"{record.place} has a {type(values).__name__} in '{column}'; expected a list of words or tags"
        )
    for value in values:
        if not isinstance(value, str):
            raise InputError(f"{record.place} has {value!r:.40} in '{column}'; expected words, and tags such as B-PER")
        if not value.strip():
            raise InputError(f"{record.place} has an empty word or tag in '{column}'; repair it")
    # JSON can spell half of a surrogate pair, which no encoding of text accepts.
    return [value.strip().encode("utf-16", "surrogatepass").decode("utf-16", "replace") for value in values]
