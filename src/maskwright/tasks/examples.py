"""Labelled texts and pairs of texts, and which columns of a file hold them.

Columns are named by the user, or guessed by the names people use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maskwright.errors import InputError
from maskwright.suggestions import name_option
from maskwright.tasks.tables import Record, Table, read_table
from maskwright.text.in_memory import TEXT_COLUMNS

_PAIRS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("question", "passage"),
    ("question", "answer"),
    ("query", "passage"),
    ("query", "document"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("#1 string", "#2 string"),
    ("anchor", "positive"),
    ("sent0", "sent1"),
)
_LABELS = (
    "label",
    "labels",
    "gold_label",
    "category",
    "class",
    "target",
    "score",
    "similarity",
    "similarity_score",
    "relatedness_score",
    "rating",
    "intent",
    "sentiment",
    "emotion",
    "topic",
    "is_duplicate",
    "quality",
)
_LABELS_OF_ONE_TEXT = {"category", "class", "intent", "sentiment", "emotion", "topic"}
"""Names of labels for single texts, not for pairs."""
NO_CONSENSUS = ("gold_label", "-")
"""The labels of pairs without annotator agreement in SNLI and MNLI; such pairs are dropped, as is usual."""


@dataclass(frozen=True)
class ColumnNames:
    """Columns named by the user. None means: guess it, except for a second text beside a named first one."""

    text: str | None = None
    second: str | None = None
    label: str | None = None


@dataclass(frozen=True)
class Columns:
    text: str
    second: str | None
    label: str

    def __str__(self) -> str:
        texts = f"text '{self.text}'" if self.second is None else f"texts '{self.text}' and '{self.second}'"
        return f"{texts}, label '{self.label}'"


def choose_columns(path: Path, found: Sequence[str], named: ColumnNames, needs_pair: bool) -> Columns:
    """Choose the columns to read from those of a file."""
    text, second = choose_texts(path, found, named, needs_pair)
    label = find_label(found, named)
    if label is None:
        raise InputError(
            f"{path} has no column known to hold labels; it has {_list(found)}: name it with"
            f" {name_option('label_column')}"
        )
    chosen = [name for name in (text, second, label) if name is not None]
    if len(set(chosen)) < len(chosen):
        raise InputError(f"{path}: the columns for texts and label are {_list(chosen)}; name different ones")
    return Columns(text, second, label)


def choose_texts(path: Path, found: Sequence[str], named: ColumnNames, needs_pair: bool) -> tuple[str, str | None]:
    """Choose the columns of the texts."""
    for name, option in ((named.text, "text"), (named.second, "second"), (named.label, "label")):
        if name is not None and name not in found:
            raise InputError(
                f"{path} has no column '{name}'; it has {_list(found)}: choose one with"
                f" {name_option(f'{option}_column')}"
            )
    text, second = _choose_texts(path, found, named, {name.lower(): name for name in found})
    if needs_pair and second is None:
        raise InputError(
            f"{path} has no two columns known to hold a pair of texts; it has {_list(found)}: name them with"
            f" {name_option('text_column')} and {name_option('second_column')}"
        )
    return text, second


def find_label(found: Sequence[str], named: ColumnNames) -> str | None:
    """The column of the label; None if no column has a known name."""
    return named.label or next(iter(_list_known_labels(found)), None)


def list_pair_labels(found: Sequence[str]) -> list[str]:
    """Columns that may hold a similarity label, the most likely first."""
    return [name for name in _list_known_labels(found) if name.lower() not in _LABELS_OF_ONE_TEXT]


def _list_known_labels(found: Sequence[str]) -> list[str]:
    spelt = {name.lower(): name for name in found}
    return [spelt[name] for name in _LABELS if name in spelt]


def _choose_texts(
    path: Path, found: Sequence[str], named: ColumnNames, spelt: Mapping[str, str]
) -> tuple[str, str | None]:
    if named.text is not None:
        return named.text, named.second
    if named.second is not None:
        raise InputError(f"the second column is '{named.second}' without a first; add {name_option('text_column')}")
    for first, second in _PAIRS:
        if first in spelt and second in spelt:
            return spelt[first], spelt[second]
    text = next((spelt[name] for name in TEXT_COLUMNS if name in spelt), None)
    if text is None:
        raise InputError(
            f"{path} has no column known to hold text; it has {_list(found)}: name it with {name_option('text_column')}"
        )
    return text, None


def _list(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


@dataclass(frozen=True)
class Example:
    place: str
    """Where it stands, as 'file:line'."""
    text: str
    second: str | None
    label: Any
    """The label as in the file."""

    @property
    def content(self) -> tuple[Any, ...]:
        """The content that a model learns from, for hashes."""
        return self.text, self.second, self.label


@dataclass(frozen=True)
class ExampleFile:
    """The examples of a file, with counts of dropped records."""

    path: Path
    columns: Columns
    examples: list[Example]
    num_blank: int
    """Records dropped because a text is empty."""
    num_undecided: int
    """Records dropped because their annotators did not agree."""

    def describe(self) -> str:
        left_out = [(self.num_blank, "with an empty text"), (self.num_undecided, "without an agreed label")]
        tail = "".join(f"; {count:,} {reason} left out" for count, reason in left_out if count)
        return f"{len(self.examples):,} examples of {self.path}, {self.columns}{tail}"

    def check_same_form(self, other: ExampleFile) -> None:
        """Refuse single texts for training with pairs for evaluation, or the reverse."""
        if (self.columns.second is None) == (other.columns.second is None):
            return
        pairs, single = (self, other) if other.columns.second is None else (other, self)
        raise InputError(
            f"{pairs.path} holds pairs ({pairs.columns}), {single.path} single texts ({single.columns}); name the"
            f" columns with {name_option('text_column')} and {name_option('second_column')}"
        )


def read_examples(
    source: str | Path | Table, named: ColumnNames, needs_pair: bool = False, may_be_unlabelled: bool = False
) -> ExampleFile:
    """The examples of a file; those without text are counted and dropped, those without a label are refused."""
    table = read_table(source)
    columns = choose_columns(table.path, table.columns, named, needs_pair)
    decided = [one for one in table.records if (columns.label, one.values.get(columns.label)) != NO_CONSENSUS]
    _check_labels_are_there(decided, columns.label, may_be_unlabelled)
    examples = [_build_example(record, columns) for record in decided]
    kept = [example for example in examples if _has_text(example)]
    if not kept:
        raise InputError(f"{table.path} holds no example with text; check {columns}")
    return ExampleFile(table.path, columns, kept, len(examples) - len(kept), len(table.records) - len(decided))


def _check_labels_are_there(records: Sequence[Record], column: str, may_be_blank: bool) -> None:
    def lacks_label(value: Any) -> bool:
        return value is None or (isinstance(value, str) and not value.strip() and not may_be_blank)

    missing = [record for record in records if lacks_label(record.values.get(column))]
    if missing:
        raise InputError(
            f"{missing[0].place} has no label in '{column}', and {len(missing) - 1:,} more lack one; label them or take"
            " them out"
        )


def _build_example(record: Record, columns: Columns) -> Example:
    second = None if columns.second is None else read_text(record, columns.second)
    return Example(record.place, read_text(record, columns.text), second, record.values[columns.label])


def read_text(record: Record, column: str) -> str:
    text = record.values.get(column)
    if text is None:
        return ""
    if not isinstance(text, str):
        raise InputError(
            f"{record.place} has a {type(text).__name__} in '{column}'; expected text: name another column"
        )
    # JSON can spell half of a surrogate pair, which no encoding of text accepts.
    return text.strip().encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _has_text(example: Example) -> bool:
    return bool(example.text) and example.second != ""
