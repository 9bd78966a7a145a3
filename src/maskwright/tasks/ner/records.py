"""Words and tags from records, a sentence to each, with a list of words and a list of tags."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from maskwright.errors import InputError
from maskwright.suggestions import name_option
from maskwright.tasks.ner.conll import RawSentence
from maskwright.tasks.tables import Record, Table, read_table

_WORDS = ("words", "tokens")
_TAGS = ("tags", "ner_tags", "labels")


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
