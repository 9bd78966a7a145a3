"""Queries with a document that answers each, perhaps others that do not, and perhaps scores of a teacher.

They come from tables of pairs, triples and lists, or from collections in BEIR's layout.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from maskwright.errors import InputError
from maskwright.suggestions import name_option
from maskwright.tasks.config import TaskConfig
from maskwright.tasks.examples import ColumnNames, choose_texts
from maskwright.tasks.retrieval.collection import TRAIN_SPLIT, find_qrels, is_collection, read_collection
from maskwright.tasks.tables import Record, Table, read_table

QUERY_COLUMNS = ("query", "anchor", "question")
POSITIVE_COLUMNS = ("positive", "positives", "pos", "passage", "document", "answer", "context")
NEGATIVE_COLUMNS = ("negative", "negatives", "neg", "hard_negative", "hard_negatives", "hard_neg")
_NUMBERED = tuple(f"negative_{number}" for number in range(1, 33))
_SCORES = "scores"
_SPLIT_SCORES = ("pos_scores", "neg_scores")
USUAL_NEGATIVES = 4
_STRIDE = 1_000_003
"""A prime: from any example on, all others are come to before one is come to again."""


@dataclass(frozen=True)
class RetrievalExample:
    place: str
    """Where it stands, as 'file:line'."""
    texts: tuple[str, ...]
    """A query, a document that answers it, then some that do not."""
    scores: tuple[float, ...] | None = None
    """A teacher's, of all documents."""

    @property
    def text(self) -> str:
        """Examples of one query are held out together."""
        return self.texts[0]

    @property
    def content(self) -> tuple[Any, ...]:
        return *self.texts, self.scores


@dataclass(frozen=True)
class RetrievalFile:
    path: Path
    examples: list[RetrievalExample]
    num_negatives: int
    """Of every example."""
    num_drawn: int
    """Negatives that are documents of other queries, where an example has too few of its own."""
    left_out: Mapping[str, int]
    """How many records are not among the examples, by reason."""

    def describe(self) -> str:
        drawn = f" ({self.num_drawn:,} of them drawn from other queries)" if self.num_drawn else ""
        negatives = f", {self.num_negatives} hard negatives each{drawn}" if self.num_negatives else ""
        scores = ", with a teacher's scores" if self.examples[0].scores is not None else ""
        tail = "".join(f"; {count:,} {reason} left out" for reason, count in self.left_out.items() if count)
        return f"{len(self.examples):,} queries with a document of {self.path}{negatives}{scores}{tail}"

    def check_same_form(self, other: RetrievalFile) -> None:
        """Nothing is refused: held-out examples may have other negatives, or none."""


def read_retrieval(
    source: str | Path | Table, config: TaskConfig, learns_scores: bool = False, *, draws_negatives: bool = False
) -> RetrievalFile:
    """The examples of a table, of a collection's folder (its `train` judgements), or of a file of its qrels.

    If it `draws_negatives`, an example has as many as are wanted even where no example has any of its own.
    """
    if config.validation is not None and config.validation == config.train:
        raise InputError(
            f"{config.train} is to train on and to be held out; name other judgements, such as FOLDER/qrels/dev.tsv"
        )
    is_table = isinstance(source, Table)
    folder = None if is_table else find_qrels(source)
    if folder is not None:
        path, examples = _read_collection(*folder, learns_scores)
    elif is_collection(source):
        path, examples = _read_collection(Path(str(source)).expanduser(), None, learns_scores)
    else:
        table = read_table(source)
        path, examples = table.path, list(_read_records(table, config, learns_scores))
    whole = [one for one in examples if all(text.strip() for text in one.texts)]
    if not whole:
        raise InputError(f"{path} holds no query with a document; check the columns")
    left_out = {"with an empty text": len(examples) - len(whole)}
    if learns_scores:
        return _cut_to_fewest(path, whole, config.num_negatives, left_out)
    return _even_out(path, whole, config.num_negatives, draws_negatives, left_out)


def _read_collection(folder: Path, split: str | None, learns_scores: bool) -> tuple[Path, list[RetrievalExample]]:
    """An example of each document that answers a query; those judged to be no answer are its negatives."""
    if learns_scores:
        raise InputError(f"{folder} holds no scores of a teacher; give a table with the column '{_SCORES}'")
    collection = read_collection(folder, split, TRAIN_SPLIT)
    examples = []
    for query, grades in collection.grades.items():
        negatives = [collection.documents[one] for one, grade in grades.items() if grade <= 0]
        texts = (collection.queries[query], *(text for text in negatives if text))
        examples += [
            RetrievalExample(f"{folder}:{query}", (texts[0], collection.documents[one], *texts[1:]))
            for one, grade in grades.items()
            if grade > 0
        ]
    return folder, examples


def _read_records(table: Table, config: TaskConfig, learns_scores: bool) -> Iterator[RetrievalExample]:
    query, positive = _choose_columns(table, config)
    negatives = _choose_negatives(table, config)
    scores = [name for name in (_SCORES, *_SPLIT_SCORES) if name in table.columns] if learns_scores else []
    if learns_scores and scores not in ([_SCORES], [*_SPLIT_SCORES]):
        raise InputError(
            f"{table.path} has no column '{_SCORES}' with a teacher's score of each document, which --loss"
            f" {config.loss} learns; it has {', '.join(table.columns)}"
        )
    for record in table.records:
        (asked,) = _read_texts(record, query) or ("",)
        found = _read_texts(record, positive)
        others = tuple(text for name in negatives for text in _read_texts(record, name))
        if learns_scores:
            values = tuple(value for name in scores for value in _read_scores(record, name))
            if len(found) != 1 or len(values) != 1 + len(others):
                raise InputError(
                    f"{record.place} has {len(values)} scores for {len(found)} documents that answer and"
                    f" {len(others)} that do not; expected one document that answers, and a score of each document"
                )
            yield RetrievalExample(record.place, (asked, *found, *others), values)
            continue
        yield from (RetrievalExample(record.place, (asked, one, *others)) for one in found)


def _choose_columns(table: Table, config: TaskConfig) -> tuple[str, str]:
    spelt = {name.lower(): name for name in table.columns}
    named = ColumnNames(config.text_column, config.second_column)
    if named.text is None and named.second is None:
        query = next((spelt[name] for name in QUERY_COLUMNS if name in spelt), None)
        positive = next((spelt[name] for name in POSITIVE_COLUMNS if name in spelt), None)
        if query is not None and positive is not None:
            return query, positive
    first, second = choose_texts(table.path, table.columns, named, needs_pair=True)
    assert second is not None
    return first, second


def _choose_negatives(table: Table, config: TaskConfig) -> list[str]:
    name, spelt = config.negative_column, {column.lower(): column for column in table.columns}
    if name is None:
        return [spelt[known] for known in (*NEGATIVE_COLUMNS, *_NUMBERED) if known in spelt]
    if name in table.columns:
        return [name]
    if str(table.path) != config.train:
        return []  # held-out examples are judged without
    raise InputError(f"{table.path} has no column '{name}'; choose one with {name_option('negative_column')}")


def _read_texts(record: Record, column: str) -> tuple[str, ...]:
    """A text, or a list of texts."""
    value = record.values.get(column)
    texts = [] if value is None else value if isinstance(value, list) else [value]
    wrong = next((one for one in texts if not isinstance(one, str)), None)
    if wrong is not None:
        raise InputError(
            f"{record.place} has a {type(wrong).__name__} in '{column}'; expected a text or a list of texts"
        )
    return tuple(texts)


def _read_scores(record: Record, column: str) -> list[float]:
    value = record.values.get(column)
    values: list[Any] = value if isinstance(value, list) else [value]
    if not all(isinstance(one, int | float) and not isinstance(one, bool) and one == one for one in values):
        raise InputError(f"{record.place} has {value!r:.60} in '{column}'; expected a list of numbers")
    return [float(one) for one in values]


def _cut_to_fewest(
    path: Path, examples: list[RetrievalExample], wanted: int | None, left_out: Mapping[str, int]
) -> RetrievalFile:
    """Examples with equally many negatives of their own, which have scores."""
    fewest = min(len(one.texts) for one in examples) - 2
    number = fewest if wanted is None else min(wanted, fewest)
    if number < 1:
        raise InputError(f"{path} has an example without negatives, whose scores leave nothing to compare")
    cut = [replace(one, texts=one.texts[: 2 + number], scores=(one.scores or ())[: 1 + number]) for one in examples]
    return RetrievalFile(path, cut, number, 0, left_out)


def _even_out(
    path: Path, examples: list[RetrievalExample], wanted: int | None, draws_all: bool, left_out: Mapping[str, int]
) -> RetrievalFile:
    """Examples with equally many negatives, as all those of a batch have; documents of other queries fill up.

    If it `draws_all` and no number is wanted, there are as many of them as of the examples' own: what a reranker learns
    first, how words of two texts match, hard negatives hide from it.
    """
    most = min(max(len(one.texts) for one in examples) - 2, USUAL_NEGATIVES if wanted is None else wanted)
    examples = [replace(one, texts=one.texts[: 2 + most]) for one in examples]
    counts, number = [len(one.texts) - 2 for one in examples], most
    if draws_all:
        number = wanted if wanted is not None else 2 * most or USUAL_NEGATIVES
    answers: dict[str, set[str]] = {}
    for one in examples:
        answers.setdefault(one.texts[0], set()).add(one.texts[1])
    filled = [(*one.texts, *_draw(examples, one, number, answers[one.texts[0]])) for one in examples]
    fewest = min(map(len, filled)) - 2
    if fewest < number and wanted is not None:
        raise InputError(
            f"{path} has too few documents for {number} negatives of each query; lower {name_option('num_negatives')}"
        )
    number = min(number, fewest)
    even = [replace(one, texts=texts[: 2 + number]) for one, texts in zip(examples, filled, strict=True)]
    return RetrievalFile(path, even, number, sum(max(0, number - count) for count in counts), left_out)


def _draw(
    examples: Sequence[RetrievalExample], one: RetrievalExample, number: int, answers: Collection[str]
) -> list[str]:
    """Documents of other queries that do not answer this one; the same for an example wherever it stands."""
    missing, drawn = number - (len(one.texts) - 2), dict[str, None]()
    key = int.from_bytes(hashlib.blake2b("\0".join(one.texts[:2]).encode(errors="replace"), digest_size=6).digest())
    for place in range(len(examples)):
        if len(drawn) >= missing:
            break
        text = examples[(key + _STRIDE * place) % len(examples)].texts[1]
        if text not in answers and text not in one.texts:
            drawn[text] = None
    return [*drawn]
