"""Labelled texts and pairs of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maskwright.errors import InputError
from maskwright.suggestions import name_option
from maskwright.tasks.columns import ColumnNames, Columns, choose_columns
from maskwright.tasks.tables import Record, Table, read_table

NO_CONSENSUS = ("gold_label", "-")
"""How SNLI and MNLI mark pairs on which their annotators did not agree; everybody leaves them out."""


@dataclass(frozen=True)
class Example:
    place: str
    """Where it stands, as 'file:line'."""
    text: str
    second: str | None
    label: Any
    """As the file has it."""

    @property
    def content(self) -> tuple[Any, ...]:
        """What a model learns from."""
        return self.text, self.second, self.label


@dataclass(frozen=True)
class ExampleFile:
    """The examples of a file, and what was left out of them."""

    path: Path
    columns: Columns
    examples: list[Example]
    num_blank: int
    """Records left out, as a text of theirs is empty."""
    num_undecided: int
    """Records left out, as their annotators did not agree."""

    def describe(self) -> str:
        left_out = [(self.num_blank, "with an empty text"), (self.num_undecided, "without an agreed label")]
        tail = "".join(f"; {count:,} {reason} left out" for count, reason in left_out if count)
        return f"{len(self.examples):,} examples of {self.path}, {self.columns}{tail}"

    def check_same_form(self, other: ExampleFile) -> None:
        """Refuse a held-out file of single texts beside pairs, or the other way round."""
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
    """The examples of a file; those without text are counted and left out, those without a label are refused."""
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
