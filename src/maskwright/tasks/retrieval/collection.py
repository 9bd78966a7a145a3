"""Collections for retrieval in BEIR's layout: documents, queries, and which documents answer which query.

A folder has corpus.jsonl (`_id`, `title`, `text`), queries.jsonl (`_id`, `text`) and qrels/SPLIT.tsv (query, document,
grade); files may be compressed, or Parquet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from maskwright.errors import InputError
from maskwright.suggestions import name_option, suggest
from maskwright.tasks.tables import Record, read_table
from maskwright.text.corpus import ReadingReport, decode_lines
from maskwright.text.streams import open_stream

TEST_SPLIT, TRAIN_SPLIT = "test", "train"
_CORPUS, _QUERIES, _QRELS = "corpus", "queries", "qrels"
ID_COLUMNS = ("_id", "id", "doc_id", "docid", "query_id", "qid")
TITLE_COLUMN = "title"
_TEXT_COLUMNS = ("text", "contents", "body", "query", "question")
_FORMATS = ("jsonl", "jsonl.zst", "jsonl.gz", "jsonl.bz2", "parquet")
_QREL_SUFFIX = ".tsv"
_BEIR_FIELDS, _TREC_FIELDS = 3, 4

Grades = Mapping[str, int]
"""By document: how well it answers a query; above 0 it does."""


@dataclass(frozen=True)
class Collection:
    folder: Path
    split: str
    documents: dict[str, str]
    """Title and text by id; the text may be empty."""
    queries: dict[str, str]
    """Those with a judgement alone."""
    grades: dict[str, dict[str, int]]
    """By query; only of queries that some document answers."""
    num_unanswered: int
    """Queries with judgements, none of which is above 0."""


def is_collection(source: object) -> bool:
    """Whether a folder has BEIR's layout."""
    return isinstance(source, str | Path) and (Path(source).expanduser() / _QRELS).is_dir()


def find_qrels(source: object) -> tuple[Path, str] | None:
    """The folder and the split of a file of judgements in a collection; None for anything else."""
    if not isinstance(source, str | Path):
        return None
    path = Path(source).expanduser()
    if path.suffix != _QREL_SUFFIX or path.parent.name != _QRELS or not path.is_file():
        return None
    return path.parent.parent, path.name.removesuffix(_QREL_SUFFIX)


def read_collection(source: str | Path, split: str | None = None, usual: str = TEST_SPLIT) -> Collection:
    """All of a folder; judgements of unknown queries or documents, and empty queries, are an `InputError`.

    `split` names the file of judgements; unset, it is the `usual` one, or the only one.
    """
    folder = Path(source).expanduser()
    if not is_collection(folder):
        raise InputError(
            f"{folder} has no folder '{_QRELS}'; expected a collection as BEIR publishes it: {_CORPUS}.jsonl,"
            f" {_QUERIES}.jsonl and {_QRELS}/SPLIT.tsv"
        )
    path = _choose_qrels(folder, split, usual)
    grades = read_grades(path)
    documents = {name: text for name, text, _ in read_documents(_find_file(folder, _CORPUS))}
    queries_path = _find_file(folder, _QUERIES)
    queries = {name: (text, place) for name, text, place in read_documents(queries_path)}
    for query, judged in grades.items():
        if query not in queries:
            raise InputError(f"{path} judges documents for query '{query}', which is not in {queries_path}")
        if not queries[query][0]:
            raise InputError(f"{queries[query][1]}: query '{query}' is empty; fill it in, or take its judgements out")
        unknown = next((one for one in judged if one not in documents), None)
        if unknown is not None:
            raise InputError(f"{path} judges document '{unknown}' for query '{query}'; {folder}/{_CORPUS} has no such")
    answered = {query: judged for query, judged in grades.items() if any(grade > 0 for grade in judged.values())}
    if not answered:
        raise InputError(f"{path} has no grade above 0, so no query has a document to be found")
    texts = {query: queries[query][0] for query in answered}
    return Collection(
        folder, path.name.removesuffix(_QREL_SUFFIX), documents, texts, answered, len(grades) - len(answered)
    )


def find_corpus(folder: Path) -> str:
    """The file of the documents of a collection."""
    return str(_find_file(folder.expanduser(), _CORPUS))


def read_documents(path: str | Path) -> Iterator[tuple[str, str, str]]:
    """Id, text with its title in front, and place of each record; the same id twice is an `InputError`."""
    table = read_table(path)
    id_column, text_column = (_find_column(path, table.columns, known) for known in (ID_COLUMNS, _TEXT_COLUMNS))
    seen: dict[str, str] = {}
    for record in table.records:
        name = _read_id(record, id_column)
        if name in seen:
            raise InputError(f"{record.place} has the id '{name}' of {seen[name]}; give each its own")
        seen[name] = record.place
        yield name, join_title(record, text_column), record.place


def join_title(record: Record, text_column: str) -> str:
    """The text with its title in front, as BEIR joins them."""
    parts = (record.values.get(TITLE_COLUMN), record.values.get(text_column))
    return " ".join(part.strip() for part in parts if isinstance(part, str) and part.strip())


def read_grades(path: Path) -> dict[str, dict[str, int]]:
    """Judgements by query: BEIR's (query, document, grade under a header) or TREC's (query, 0, document, grade)."""
    report, grades = ReadingReport(), dict[str, dict[str, int]]()
    with open_stream(path) as stream:
        for number, line in decode_lines(stream, report, cut_long_lines=False):
            if report.num_invalid_lines:
                raise InputError(f"{path}:{number} is not valid UTF-8; convert the file to UTF-8")
            cells = line.rstrip("\r\n").split("\t") if "\t" in line else line.split()
            if not any(cells):
                continue
            if len(cells) not in (_BEIR_FIELDS, _TREC_FIELDS):
                raise InputError(f"{path}:{number} has {len(cells)} fields; expected query, document and grade")
            grade = _read_grade(cells[-1])
            if grade is None:
                if number == 1:
                    continue  # the header
                raise InputError(f"{path}:{number} has the grade '{cells[-1]:.40}'; expected a whole number")
            grades.setdefault(cells[0], {})[cells[-2]] = grade
    if not grades:
        raise InputError(f"{path} holds no judgement; expected query, document and grade on each line")
    return grades


def _read_grade(cell: str) -> int | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return int(value) if value.is_integer() else None


def _choose_qrels(folder: Path, split: str | None, usual: str) -> Path:
    found = {path.name.removesuffix(_QREL_SUFFIX): path for path in sorted((folder / _QRELS).glob(f"*{_QREL_SUFFIX}"))}
    if not found:
        raise InputError(f"{folder / _QRELS} holds no {_QREL_SUFFIX} file; expected judgements of queries")
    if split is None:
        split = usual if usual in found else next(iter(found))
        if split != usual and len(found) > 1:
            raise InputError(
                f"{folder / _QRELS} holds {', '.join(found)} and no {usual}; choose one with {name_option('split')}"
            )
    if split not in found:
        raise InputError(f"{folder / _QRELS} has no '{split}{_QREL_SUFFIX}'{suggest(split, found)}")
    return found[split]


def _find_file(folder: Path, name: str) -> Path:
    path = next((folder / f"{name}.{one}" for one in _FORMATS if (folder / f"{name}.{one}").is_file()), None)
    if path is None:
        raise InputError(f"{folder} has no {name}.jsonl; expected a collection as BEIR publishes it")
    return path


def _find_column(path: str | Path, columns: tuple[str, ...], known: tuple[str, ...]) -> str:
    column = next((name for name in known if name in columns), None)
    if column is None:
        raise InputError(f"{path} has none of the columns {', '.join(known)}; it has {', '.join(columns)}")
    return column


def _read_id(record: Record, column: str) -> str:
    value = record.values.get(column)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value:
        raise InputError(f"{record.place} has the id {value!r:.40} in '{column}'; expected a text or a whole number")
    return value
