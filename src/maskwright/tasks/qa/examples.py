"""Questions about a context, with the answers that annotators found in it, from SQuAD's JSON and from records."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maskwright.errors import InputError
from maskwright.suggestions import name_option
from maskwright.tasks.config import TaskConfig
from maskwright.tasks.tables import Record, Table, read_table
from maskwright.text.streams import COMPRESSIONS, open_stream

QUESTION_COLUMN, CONTEXT_COLUMN = "question", "context"
_ANSWER_COLUMNS = ("answers", "answer")
_START_KEYS = ("answer_start", "start")
_TABLE_FORMATS = ".jsonl, .csv, .tsv, .parquet"
Span = tuple[int, int]
"""The first character and the one behind the last."""


@dataclass(frozen=True)
class Question:
    place: str
    """Where it stands, as 'file: id' or 'file:line'."""
    text: str
    context: str
    answers: tuple[str, ...]
    """The annotators' answers; empty if the context does not answer the question."""
    spans: tuple[Span, ...]
    """The spans of those answers that occur in the context."""

    @property
    def content(self) -> tuple[Any, ...]:
        """The content that a model learns from, for hashes."""
        return self.text, self.context, self.answers, self.spans


@dataclass(frozen=True)
class QuestionFile:
    path: Path
    examples: list[Question]
    num_blank: int
    """Questions dropped because they or their context are empty."""
    lost: list[str]
    """Answers that do not occur in their context, with their place."""

    def describe(self) -> str:
        num_unanswered = sum(not one.answers for one in self.examples)
        num_contexts = len({one.context for one in self.examples})
        parts = [f"{len(self.examples):,} questions about {num_contexts:,} contexts of {self.path}"]
        parts += [f"{num_unanswered:,} have no answer"] * bool(num_unanswered)
        parts += [f"{self.num_blank:,} with an empty text left out"] * bool(self.num_blank)
        if self.lost:
            parts.append(
                f"{len(self.lost):,} answers not found in their context, left out of training, first: {self.lost[0]}"
            )
        return "; ".join(parts)

    def check_same_form(self, other: QuestionFile) -> None:
        """Nothing is refused: files with and without unanswerable questions may be combined."""


def read_questions(source: str | Path | Table, config: TaskConfig) -> QuestionFile:
    """All questions of a file; answers that do not occur in their context are kept as text, for scoring."""
    path = source.path if isinstance(source, Table) else Path(source).expanduser()
    named = (config.text_column, config.second_column, config.label_column)
    if not isinstance(source, Table) and is_squad_file(path) and any(named):
        raise InputError(f"{path} is read as SQuAD's JSON, which has no columns to name; leave the column options out")
    columns = (config.text_column or QUESTION_COLUMN, config.second_column or CONTEXT_COLUMN)
    questions = [_build_question(record, columns, config.label_column) for record in read_question_records(source)]
    kept = [one for one in questions if one.text and one.context.strip()]
    if not kept:
        raise InputError(f"{path} holds no question with a context; expected at least one")
    lost = [
        f"{one.place} '{answer}'"
        for one in kept
        if len(one.spans) < len(one.answers)
        for answer in one.answers
        if find_answer(one.context, answer) is None
    ]
    if lost and not any(one.spans for one in kept):
        raise InputError(
            f"none of the {len(lost):,} answers of {path} is in its context, first: {lost[0]}; extractive answers are"
            " parts of the context: check the columns"
        )
    return QuestionFile(path, kept, len(questions) - len(kept), lost)


def _build_question(record: Record, columns: Sequence[str], answer_column: str | None) -> Question:
    text, context = (read_text(record, column) for column in columns)
    answers = [] if record.values.get("is_impossible") is True else _read_answers(record, answer_column)
    found = (find_answer(context, answer, start) for answer, start in answers)
    return Question(
        record.place,
        text.strip(),
        context,
        tuple(answer for answer, _ in answers),
        tuple(span for span in found if span is not None),
    )


def _read_answers(record: Record, column: str | None) -> list[tuple[str, int | None]]:
    """The answers with their start, if given; an empty text is no answer."""
    name = column or next((one for one in _ANSWER_COLUMNS if one in record.values), None)
    if name is None or name not in record.values:
        expected = f"'{column}'" if column else " or ".join(f"'{one}'" for one in _ANSWER_COLUMNS)
        raise InputError(
            f"{record.place} has no {expected}; it has {', '.join(record.values)}: name the column of the answers with"
            f" {name_option('label_column')}, and leave it empty where there is none"
        )
    answers = [_read_answer(one, record, name) for one in _list_answers(record, name)]
    return [(text, start) for text, start in answers if text.strip()]


def _list_answers(record: Record, name: str) -> Sequence[Any]:
    """One by one, whether given as one text, a list, or lists of texts and starts side by side, as on the hub."""
    given = record.values[name]
    if given is None:
        return []
    if isinstance(given, list):
        return given
    if isinstance(given, str):
        return [{"text": given, "start": _find_start(record.values)}]
    if isinstance(given, dict) and isinstance(given.get("text"), list):
        starts = _find_start(given) or [None] * len(given["text"])
        if isinstance(starts, list) and len(starts) == len(given["text"]):
            return [{"text": text, "start": start} for text, start in zip(given["text"], starts, strict=True)]
    return [given]


def _read_answer(given: Any, record: Record, name: str) -> tuple[str, int | None]:
    answer = {"text": given} if isinstance(given, str) else given
    if not isinstance(answer, dict) or not isinstance(answer.get("text"), str):
        raise InputError(
            f"{record.place} has {given!r:.60} in '{name}'; expected a text, or an object with 'text' and"
            " 'answer_start'"
        )
    start = _find_start(answer)
    try:
        return answer["text"], None if start in (None, "") else _read_whole(start)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"{record.place} has an answer that starts at {start!r:.60}; expected the number of a character"
        ) from error


def _read_whole(value: Any) -> int:
    """A whole number, also one that a table wrote as 3.0."""
    number = float(value)
    if number % 1:
        raise ValueError(f"{value} is not whole")
    return int(number)


def _find_start(values: Mapping[str, Any]) -> Any:
    return next((values[key] for key in _START_KEYS if key in values), None)


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
    return iter(read_table(path).records)


def read_text(record: Record, column: str) -> str:
    """A text unchanged, with its whitespace, since answers are offsets in it."""
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


def find_answer(context: str, answer: str, start: int | None = None) -> Span | None:
    """The answer's characters: at `start` if they are there, else at its nearest occurrence; None if there is none.

    Whole words come before parts of words, and an exact occurrence before one that differs in case or blanks. Without
    a `start` the first counts.
    """
    words = answer.split()
    if not words:
        return None
    stripped = answer.strip()
    if start is not None:
        start += len(answer) - len(answer.lstrip())
        if start >= 0 and context.startswith(stripped, start):
            return start, start + len(stripped)
    exact, loose = re.escape(stripped), r"\s+".join(map(re.escape, words))
    for pattern in (
        re.compile(rf"(?<!\w){exact}(?!\w)"),
        re.compile(rf"(?<!\w){loose}(?!\w)", re.IGNORECASE),
        re.compile(exact),
        re.compile(loose, re.IGNORECASE),
    ):
        spans = [match.span() for match in pattern.finditer(context)]
        if spans:
            return min(spans, key=lambda span: abs(span[0] - (start or 0)))
    return None
