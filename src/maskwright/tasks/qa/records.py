"""Files of questions as records: SQuAD's JSON as published, JSON lines, separated values and Parquet."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from maskwright.errors import InputError
from maskwright.tasks.tables import Record, Table, read_table
from maskwright.text.files import COMPRESSIONS, open_file, open_stream

_BATCH_ROWS = 1_000
_TABLE_FORMATS = ".jsonl, .csv, .tsv, .parquet"


def is_squad_file(path: Path) -> bool:
    plain = path.with_suffix("") if path.suffix.lower() in COMPRESSIONS else path
    return plain.suffix.lower() == ".json"


def read_question_records(source: str | Path | Table) -> Iterator[Record]:
    """The records of a file with their place; those of SQuAD's JSON have `question`, `context`, `answers` and so on."""
    if isinstance(source, Table):
        return iter(source.records)
    path = Path(source).expanduser()
    if is_squad_file(path):
        return _read_squad(path)
    if path.suffix.lower() == ".parquet":
        return _read_parquet(path)
    return iter(read_table(path).records)


def read_question_pairs(path: str | Path, question: str | None, columns: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each question with its context, by the columns of the two; with a `question` given it is asked of every context.

    Blanks are kept, so that places in a context are those of the file.
    """
    for record in read_question_records(path):
        texts = [read_text(record, column) for column in (columns[1:] if question is not None else columns)]
        yield (question, texts[0]) if question is not None else (texts[0], texts[1])


def read_text(record: Record, column: str) -> str:
    """A text as it is, blanks included, since answers are places in it."""
    text = record.values.get(column)
    if not isinstance(text, str):
        found = f"a {type(text).__name__} in '{column}'" if column in record.values else f"no '{column}'"
        known = ", ".join(record.values)
        raise InputError(f"{record.place} has {found}; expected text: its columns are {known}")
    # JSON can spell half of a surrogate pair, which no encoding of text accepts; one character stays one.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _read_squad(path: Path) -> Iterator[Record]:
    with open_stream(path) as stream:
        content = b"".join(iter(stream.read, b""))
    try:
        file = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON ({' '.join(str(error).split())}); repair or fetch it again") from error
    articles = file.get("data") if isinstance(file, dict) else None
    if not isinstance(articles, list):
        raise InputError(
            f"{path} has no list 'data' as SQuAD's files have; give such a file, or records as {_TABLE_FORMATS}"
        )
    for article in articles:
        for paragraph in _list_parts(article, "paragraphs", path):
            for asked in _list_parts(paragraph, "qas", path):
                place = f"{path}: {asked.get('id', asked.get('question'))}"
                yield Record(place, {**asked, "context": paragraph.get("context")})


def _list_parts(whole: Any, key: str, path: Path) -> list[Mapping[str, Any]]:
    parts = whole.get(key) if isinstance(whole, dict) else None
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise InputError(f"{path} has a part without a list '{key}' of objects; SQuAD's files have one: repair it")
    return parts


def _read_parquet(path: Path) -> Iterator[Record]:
    import pyarrow
    from pyarrow import parquet

    number = 0
    with open_file(path) as file:
        try:
            for batch in parquet.ParquetFile(file).iter_batches(_BATCH_ROWS):
                for values in batch.to_pylist():
                    number += 1
                    yield Record(f"{path}:{number}", values)
        except (pyarrow.ArrowException, OSError) as error:
            raise InputError(
                f"{path} is damaged or no Parquet file: {' '.join(str(error).split())}; write or fetch it again"
            ) from error
