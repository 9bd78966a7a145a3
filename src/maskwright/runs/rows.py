"""What `predict` is given as rows, in order: what is asked of the model, and what joins the answer to its record."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maskwright.errors import InputError
from maskwright.inference.qa import QUESTION_ITEM
from maskwright.inference.runner import Kind
from maskwright.inference.texts import list_inputs
from maskwright.sections.data import BUILTIN_CORPUS, SourceConfig
from maskwright.stores.addresses import Place, StoreUrl
from maskwright.stores.objects import read_versions
from maskwright.tasks.examples import read_text
from maskwright.tasks.qa.examples import CONTEXT_COLUMN, QUESTION_COLUMN, is_squad_file, read_question_records
from maskwright.tasks.qa.examples import read_text as read_exact
from maskwright.tasks.tables import MEMORY, Record, Table, as_table
from maskwright.text.corpus import ReadingReport
from maskwright.text.files import file_format, find_files, measure_files
from maskwright.text.huggingface import is_dataset, is_loaded, saved_folder
from maskwright.text.in_memory import TEXT_COLUMN, find_text_column, is_table, iterate_rows, warn
from maskwright.text.rows import SourceRow, WantedColumns, line_rows, read_rows, read_whole
from maskwright.text.sources import fingerprint as compute_fingerprint
from maskwright.text.streams import ByteStream
from maskwright.text.tokenizer.tokenizer import refuse_half_characters

STDIN = "-"
ALL_COLUMNS = "*"
_STDIN_NAME = "standard input"
_PAIR_COLUMNS = ("sentence1", "sentence2")
_PAIR_KIND = "pair"
_PAIR_SIZE = 2
_ROW, _FILE, _ID = "row", "file", "id"
_PREFIX = "source_"
_HASH_BYTES = 6


@dataclass(frozen=True)
class RowOptions:
    column: str | None = None
    second_column: str | None = None
    question: str | None = None
    """Asked about every text; for qa alone."""
    id_column: str | None = None
    """None: `id`, if the records have one."""
    keep_columns: Collection[str] | None = ()
    """None: all."""

    @property
    def names_columns(self) -> bool:
        return self != RowOptions(question=self.question)


@dataclass(frozen=True, slots=True)
class AskedRow:
    item: Any
    """A text, or several; those that are not there are None."""
    labels: dict[str, Any]
    """Its number or id, its file among several, and the columns to keep."""
    share: float | None = None
    """How much of the source lies before the next row."""

    @property
    def asked(self) -> Any:
        """The item for the model, to which what is not there is empty."""
        return tuple(text or "" for text in self.item) if isinstance(self.item, tuple) else self.item or ""


@dataclass(frozen=True)
class AskedRows:
    rows: Iterable[AskedRow]
    blank: AskedRow
    """What every row is like."""
    fingerprint: Callable[[], str]
    """Tells one content from another."""
    source: str | None = None
    """What they are read from, unless they were given as they are."""
    must_answer: bool = False
    """A text alone, which is refused rather than left without an answer."""

    @property
    def can_repeat(self) -> bool:
        """Whether the same command finds them again."""
        return self.source != STDIN


def read_keep_columns(given: bool | str | Sequence[str]) -> Collection[str] | None:
    """None: all."""
    if given is True or given == ALL_COLUMNS:
        return None
    names = tuple(name.strip() for name in (given.split(",") if isinstance(given, str) else given or ()))
    if not all(names):
        raise InputError(f"the columns to keep are {given!r:.80}; name them as in a,b, or give no names for all")
    return names


def find_rows(kind: Kind[Any, Any], name: str, texts: Any, options: RowOptions, report: ReadingReport) -> AskedRows:
    """What the model is asked, from a text, a source, or what is in memory."""
    is_qa = kind.item_name == QUESTION_ITEM
    if options.question is not None and not is_qa:
        raise InputError(f"--question is for qa, not {name}; leave it out")
    if options.question is not None and not options.question.strip():
        raise InputError("--question is empty; give it some text")
    texts = list(texts) if isinstance(texts, Iterator) else texts
    if isinstance(texts, Mapping):
        is_record = not is_loaded(texts) and all(isinstance(value, str) for value in texts.values())
        texts = [texts] if is_record else iterate_rows(texts, f"{MEMORY}texts")
    source = _find_source(texts, is_qa) if isinstance(texts, str) else str(texts) if isinstance(texts, Path) else None
    if source is not None:
        return _read_source(kind, source, options, report)
    if _is_table(kind, texts, options):
        return _take_table(kind, as_table(texts, f"{MEMORY}texts"), options)
    return _take_objects(kind, texts, options)


def _find_source(word: str, is_qa: bool) -> str | None:
    """The word if it names texts rather than being one: `-`, what is there, or a name as files have."""
    if not word.strip():
        return None
    if word in (STDIN, BUILTIN_CORPUS) or is_dataset(word) or _exists(word):
        return word
    is_file = file_format(Path(word)) is not None or (is_qa and is_squad_file(Path(word)))
    return word if len(word.split()) == 1 and is_file else None


def _exists(word: str) -> bool:
    try:
        return Path(word).exists()
    except (OSError, ValueError):  # too long for a name, or with characters that no name has: a text
        return False


def _is_table(kind: Kind[Any, Any], texts: Any, options: RowOptions) -> bool:
    """A data frame, a dataset, or dictionaries that the kind of prediction does not take as they are."""
    if is_table(texts):
        return True
    if not isinstance(texts, Sequence) or not texts or not all(isinstance(one, Mapping) for one in texts):
        return False
    is_taken = kind.item_name == QUESTION_ITEM or any("text_pair" in one for one in texts)
    return not is_taken or options != RowOptions()


def _name_columns(kind: Kind[Any, Any], options: RowOptions) -> tuple[str, ...]:
    if kind.item_name == QUESTION_ITEM:
        if options.question is None:
            return (options.column or QUESTION_COLUMN, options.second_column or CONTEXT_COLUMN)
        if options.second_column is not None:
            raise InputError(
                "--second-column names the contexts beside --column for questions; with --question use --column for"
                " the contexts"
            )
        return (options.column or CONTEXT_COLUMN,)
    if kind.item_name == _PAIR_KIND or (kind.may_pair and options.second_column is not None):
        return (options.column or _PAIR_COLUMNS[0], options.second_column or _PAIR_COLUMNS[1])
    if options.second_column is not None:
        raise InputError("--second-column is for pairs of texts (similarity, classify); leave it out")
    return (options.column or TEXT_COLUMN,)


def _make_item(texts: Sequence[str | None], options: RowOptions) -> Any:
    if options.question is not None:
        return options.question, texts[0]
    return tuple(texts) if len(texts) > 1 else texts[0]


class _Labels:
    """What joins an answer to its record. A column with the name of a part of the answer has another one there."""

    def __init__(
        self, kind: Kind[Any, Any], blank: Any, columns: Sequence[str], name: str, options: RowOptions
    ) -> None:
        inputs = kind.describe_input(blank)
        self._texts = {column for column in columns if column in inputs}
        self._taken = {_ROW, _FILE, *inputs, *kind.example}
        self._names: dict[str, str] = {}
        self._source, self._options = name, options
        self._id: str | None = options.id_column
        self._checked: list[Place | None] = []

    def build(self, number: int, values: Mapping[str, Any] | None, file: Place | None = None) -> dict[str, Any]:
        if values or values is None:
            self._check(values, file)
        values = values or {}
        labels: dict[str, Any] = {_ROW: number} if self._id is None else {self._rename(self._id): values.get(self._id)}
        if file is not None:
            labels[_FILE] = file.as_posix()
        kept = values if self._options.keep_columns is None else self._options.keep_columns
        for name in kept:
            if name != self._id and name not in self._texts:
                labels[self._rename(name)] = values.get(name)
        return labels

    def _check(self, values: Mapping[str, Any] | None, file: Place | None) -> None:
        """Of the first record of each file."""
        if file in self._checked[-1:]:
            return
        self._checked.append(file)
        if values is None:
            if self._options.id_column is not None or self._options.keep_columns != ():
                raise InputError(f"{self._source} has no columns; leave out --id-column and --keep-columns")
            return
        if self._id is None and _ID in values and len(self._checked) == 1:
            self._id = _ID
        for option, names in (("id-column", [self._options.id_column]), ("keep-columns", self._options.keep_columns)):
            for name in names or ():
                if name is not None and name not in values:
                    raise InputError(
                        f"{file or self._source} has no column '{name}'; it has {', '.join(values)}: name another with"
                        f" --{option}"
                    )

    def _rename(self, name: str) -> str:
        if name not in self._names:
            new = name
            while new in self._taken:
                new = _PREFIX + new
            self._taken.add(new)
            self._names[name] = new
        return self._names[name]


def _read_source(kind: Kind[Any, Any], source: str, options: RowOptions, report: ReadingReport) -> AskedRows:
    is_qa = kind.item_name == QUESTION_ITEM
    is_squad = is_qa and source != STDIN and not is_dataset(source) and is_squad_file(Path(source))
    columns = _name_columns(kind, options)
    blank = _make_item([""] * len(columns), options)
    labels = _Labels(kind, blank, columns, source, options)
    if is_squad:
        rows = _number(
            (_take_record(record, columns, True) for record in read_question_records(source)), options, labels
        )
        # SQuAD's own ids, also where it has no question
        return AskedRows(rows, AskedRow(blank, {_ID: ""}), lambda: _describe_source(source), source)
    found: Iterator[SourceRow]
    if source == STDIN or (is_qa and _is_plain(source)):
        _refuse_without_columns(kind, source, options)
    if source == STDIN:
        found = _read_stdin(report, is_qa)
    else:
        if not is_qa:
            SourceConfig(path=source, column=columns[0], second_column=dict(enumerate(columns)).get(1))  # two of them
        keeps = options.keep_columns
        others = None if keeps is None else {*keeps, options.id_column or _ID}
        found = read_rows(source, WantedColumns(columns, others, not is_qa, whole_files=is_qa), report)
    rows = _number(found, options, labels)
    return AskedRows(rows, AskedRow(blank, {_ROW: 0}), lambda: _describe_source(source), source)


def _is_plain(source: str) -> bool:
    return not is_dataset(source) and file_format(Path(source)) == "text"


def _refuse_without_columns(kind: Kind[Any, Any], source: str, options: RowOptions) -> None:
    if kind.item_name == QUESTION_ITEM and options.question is None:
        raise InputError("there is no question; give --question beside texts, or a file with questions and contexts")
    if kind.item_name == _PAIR_KIND or (kind.may_pair and options.second_column is not None):
        raise InputError("pairs are not read from standard input; give a .jsonl, .csv, .tsv or .parquet file")
    if options.names_columns:
        raise _describe_no_columns(options)


def _describe_no_columns(options: RowOptions) -> InputError:
    if options.column is None and options.second_column is None:
        return InputError("--id-column and --keep-columns are for files of records; leave them out")
    return InputError("--column and --second-column are for files of records; leave them out")


def _read_stdin(report: ReadingReport, is_whole: bool) -> Iterator[SourceRow]:
    stream = ByteStream(Path(_STDIN_NAME), sys.stdin.buffer)
    rows = iter([SourceRow((read_whole(stream),))]) if is_whole else line_rows(stream, report)
    is_blank = True
    for row in rows:
        is_blank = is_blank and not row.texts[0]
        yield row
    if is_blank:
        raise InputError("standard input holds no text; expected one text per line")


def _number(rows: Iterable[SourceRow], options: RowOptions, labels: _Labels) -> Iterator[AskedRow]:
    for number, row in enumerate(rows):
        item = _make_item(row.texts, options)
        yield AskedRow(item, labels.build(number, row.values, row.file), row.share)


def _take_record(record: Record, columns: Sequence[str], is_exact: bool) -> SourceRow:
    read = read_exact if is_exact else read_text
    texts = [None if record.values.get(name, "") is None else read(record, name) for name in columns]
    return SourceRow(tuple(texts), record.values)


def _take_table(kind: Kind[Any, Any], table: Table, options: RowOptions) -> AskedRows:
    columns = _name_columns(kind, options)
    if columns == (TEXT_COLUMN,) and options.column is None:
        columns = (find_text_column(table.records[0].values, None, str(table.path), warn),)
    for name, option in zip(columns, ("column", "second-column"), strict=False):
        if name not in table.columns:
            raise InputError(
                f"{table.path} has no column '{name}'; it has {', '.join(table.columns)}: name it with --{option}"
            )
    blank = _make_item([""] * len(columns), options)
    labels = _Labels(kind, blank, columns, str(table.path), options)
    is_exact = kind.item_name == QUESTION_ITEM
    found = [_take_record(record, columns, is_exact) for record in table.records]
    rows = list(_number(found, options, labels))
    return AskedRows(rows, AskedRow(blank, {_ROW: 0}), lambda: _describe_memory(rows))


def _take_objects(kind: Kind[Any, Any], texts: Any, options: RowOptions) -> AskedRows:
    """A text, texts, pairs of them, or questions with their contexts."""
    is_alone = isinstance(texts, str) or not isinstance(texts, Iterable)
    words = [texts] if is_alone else list_inputs(texts)
    if not all(isinstance(word, str) for word in words):
        if options.question is not None:
            raise InputError("--question is asked about texts, and questions with contexts are given; leave it out")
        items = list(kind.as_items(words)[0])
    else:
        for word in words:
            refuse_half_characters(word, "the text")
        if kind.item_name == QUESTION_ITEM and options.question is not None:
            items = [(options.question, word) for word in words]
        elif kind.item_name == QUESTION_ITEM and words:
            raise InputError(
                "there is no question; give --question beside texts, or a file with questions and contexts"
            )
        elif kind.item_name == _PAIR_KIND:
            if len(words) != _PAIR_SIZE:
                raise InputError(f"{len(words)} texts are given; expected two to compare, or a file of pairs")
            items, is_alone = [(words[0], words[1])], True
        else:
            items = words
    if options.names_columns:
        raise _describe_no_columns(options)
    rows = [AskedRow(item, {_ROW: number}) for number, item in enumerate(items)]
    blank = AskedRow(items[0] if items else "", {_ROW: 0})
    return AskedRows(rows, blank, lambda: _describe_memory(rows), must_answer=is_alone)


def _describe_source(source: str) -> str:
    """A source by its files, with their sizes and when they were last written."""
    if source == STDIN:
        return _STDIN_NAME
    if source == BUILTIN_CORPUS:
        return f"{source} {compute_fingerprint(source)[0]['hash']}"
    folder = saved_folder(source) if is_dataset(source) else None
    if folder is not None:
        files: list[Place] = [*sorted(path for path in folder.rglob("*") if path.is_file())]
    elif is_dataset(source):
        return source  # its name has to do, since the hub may be out of reach
    else:
        files = [Path(source)] if is_squad_file(Path(source)) else find_files(source)
    return f"{source} {describe_files(files)}"


def describe_files(files: Sequence[Place]) -> str:
    """Files by number and size, and a digest that another time of writing, or version in a store, changes."""
    stats: list[tuple[str, int, int | str]] = [
        (str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files if isinstance(file, Path)
    ]
    stored = [file for file in files if isinstance(file, StoreUrl)]
    stats += zip(map(str, stored), measure_files(stored), read_versions(stored), strict=True)
    return f"({len(files):,} files of {sum(size for _, size, _ in stats):,} bytes, {_hash(stats)})"


def _describe_memory(rows: Sequence[AskedRow]) -> str:
    return f"{len(rows):,} texts in memory ({_hash([(row.item, row.labels) for row in rows])})"


def _hash(values: Iterable[Any]) -> str:
    digest = hashlib.blake2b(digest_size=_HASH_BYTES)
    for value in values:
        digest.update(json.dumps(value, default=str).encode() + b"\n")
    return digest.hexdigest()
