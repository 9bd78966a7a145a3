"""What a caller holds in memory, as rows or as texts: lists, generators, data frames, Arrow tables and datasets.

Objects of pandas, polars, pyarrow and `datasets` are known by their methods, so none of these libraries is imported.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from maskwright.errors import InputError, InputWarning
from maskwright.sections.data import SourceConfig
from maskwright.text.corpus import ReadingReport
from maskwright.text.huggingface import is_loaded, name_classes
from maskwright.text.sources import read_rows

TEXT_COLUMN = "text"
TEXT_COLUMNS = (
    TEXT_COLUMN,
    "sentence",
    "review",
    "content",
    "comment",
    "tweet",
    "utterance",
    "query",
    "question",
    "document",
    "body",
    "article",
    "abstract",
    "passage",
)
"""Names that people give to a column of texts, the likeliest first."""
NAMING = "name it as column="

Say = Callable[[str], None]


def warn(message: str) -> None:
    warnings.warn(message, InputWarning, stacklevel=2)


def is_source(item: Any) -> bool:
    """Whether an item of a list is something to read; a mapping is one if it has a path, else it is a record."""
    return isinstance(item, Path | SourceConfig) or (isinstance(item, Mapping) and "path" in item)


def is_table(data: Any) -> bool:
    """Whether data has named columns: a data frame, an Arrow table or a dataset."""
    if hasattr(data, "collect_schema"):  # polars, which warns if a frame that is not computed yet is asked for columns
        return True
    return hasattr(data, "columns") or hasattr(data, "column_names") or isinstance(_find_features(data), Mapping)


def iterate_rows(data: Any, name: str) -> Iterable[Any]:
    """The rows of a table as mappings, of anything else its items; missing values are None.

    What can be read more than once still can.
    """
    if isinstance(data, Mapping):
        if is_loaded(data):
            raise InputError(f"the {type(data).__name__} holds the splits {', '.join(data)}; give one of them")
        raise InputError(
            f"{name} is a {type(data).__name__} of {', '.join(map(str, data))}; give one of its splits, or a list of"
            " dictionaries"
        )
    if hasattr(data, "collect") and hasattr(data, "collect_schema"):  # polars, not computed yet
        raise InputError(f"{name} is a {type(data).__name__}; give the data frame that its collect() returns")
    if hasattr(data, "notna") and hasattr(data, "columns"):  # pandas, whose missing values are of several kinds
        return data.astype(object).where(data.notna(), None).to_dict("records")
    if hasattr(data, "iter_rows") and hasattr(data, "columns"):  # polars
        return data.iter_rows(named=True)
    if hasattr(data, "to_pylist"):  # pyarrow
        return data.to_pylist()
    if isinstance(_find_features(data), Mapping):
        return name_classes(data, data.features)
    if isinstance(data, str | bytes) or not isinstance(data, Iterable):
        raise InputError(
            f"{name} is of type {type(data).__name__}; expected the path of a file, a list of dictionaries or tuples, a"
            " data frame or a dataset"
        )
    return data


def _find_features(data: Any) -> Any:
    return getattr(data, "features", None)


def read_texts(
    data: Any,
    column: str | None = None,
    report: ReadingReport | None = None,
    say: Say = warn,
    naming: str = NAMING,
) -> Iterator[str]:
    """The texts of strings, or those in a column of records; a column that is guessed is said. None of nothing.

    `naming` is how a caller names the column.
    """
    name = type(data).__name__
    rows = iter(iterate_rows(data, name))
    first = next(rows, None)
    if first is None:
        return
    rows = chain([first], rows)
    if not isinstance(first, Mapping):
        if column is not None:
            raise InputError(f"column is '{column}', and a {name} of texts has no columns; leave it out")
        yield from _check_strings(rows)
        return
    chosen = find_text_column(first, column, f"the {name}", say, naming)
    yield from read_rows(_check_mappings(rows, name), chosen, report, name)


def find_text_column(columns: Iterable[str], named: str | None, name: str, say: Say, naming: str = NAMING) -> str:
    """The named column of texts, or one by a usual name, or the only one with a string in the first record."""
    found = [str(column) for column in columns]
    shown = ", ".join(f"'{column}'" for column in found)
    if named is not None:
        if named not in found:
            raise InputError(f"{name} has no column '{named}'; it has {shown}: {naming}")
        return named
    spelt = {column.lower(): column for column in reversed(found)}
    usual = next((spelt[one] for one in TEXT_COLUMNS if one in spelt), None)
    strings = [one for one in found if isinstance(columns, Mapping) and isinstance(columns[one], str)]
    if usual is None and len(strings) != 1:
        raise InputError(f"{name} has no column known to hold text; it has {shown}: {naming}")
    chosen = strings[0] if usual is None else usual
    if chosen != TEXT_COLUMN:
        say(f"{name} has no column '{TEXT_COLUMN}', so its texts are those of '{chosen}'; for another, {naming}")
    return chosen


def _check_strings(rows: Iterable[Any]) -> Iterator[str]:
    for row in rows:
        if not isinstance(row, str):
            raise InputError(
                f"among the texts is a {type(row).__name__}, {row!r:.40}; give strings, or a `Path` for every file"
            )
        yield row


def _check_mappings(rows: Iterable[Any], name: str) -> Iterator[Mapping[str, Any]]:
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            raise InputError(f"{name}:{number} is a {type(row).__name__}; expected a record, as the first one is")
        yield row
