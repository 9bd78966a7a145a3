"""`maskwright predict` and `maskwright.predict`: texts or questions in, answers as a list, a file or a stream."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from rich.console import Console

from maskwright.errors import InputError, InputWarning
from maskwright.inference.outputs import check_output, open_writer, show_progress
from maskwright.inference.pipeline import Pipeline, pipeline, resolve_kind
from maskwright.inference.qa import QUESTION_ITEM
from maskwright.ownership import owning
from maskwright.runs.given import GivenModel
from maskwright.sections.data import BUILTIN_CORPUS
from maskwright.suggestions import checks_arguments
from maskwright.tasks.examples import read_text
from maskwright.tasks.qa.examples import CONTEXT_COLUMN, QUESTION_COLUMN, is_squad_file, read_question_pairs
from maskwright.tasks.qa.examples import read_text as read_exact
from maskwright.tasks.tables import MEMORY, Table, as_table
from maskwright.terminal import CleanConsole
from maskwright.text.corpus import ReadingReport, text_lines
from maskwright.text.files import ByteStream, file_format, open_stream
from maskwright.text.huggingface import is_dataset
from maskwright.text.sources import read_pairs, read_source
from maskwright.text.tokenizer.tokenizer import refuse_half_characters

STDIN = "-"
_PAIR_COLUMNS = ("sentence1", "sentence2")
_TEXT_COLUMN = "text"
_PAIR_KIND = "pair"
_VECTOR_KIND = "embed"
_PAIR_SIZE = 2


@dataclass(frozen=True)
class PredictOptions:
    column: str | None = None
    second_column: str | None = None
    question: str | None = None
    """Asked about every text; for qa alone."""


@checks_arguments
def predict(
    kind: str,
    model: GivenModel,
    texts: Any,
    *,
    top_k: int | None = None,
    target: Sequence[str] | None = None,
    pooling: str | None = None,
    normalize: bool = False,
    aggregation: str | None = None,
    label: Sequence[str] | None = None,
    hypothesis: str | None = None,
    multi_label: bool = False,
    question: str | None = None,
    max_answer_length: int | None = None,
    max_question_length: int | None = None,
    doc_stride: int | None = None,
    handle_impossible_answer: bool = False,
    max_length: int | None = None,
    column: str | None = None,
    second_column: str | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    device: str | None = None,
    batch_tokens: int | None = None,
    precision: str | None = None,
    tokenizer: Any = None,
    write: Callable[[dict[str, Any]], None] | None = None,
    console: Console | None = None,
) -> list[Any] | None:
    """Answers of a model to texts, as a list in their order.

    `texts` are a text, a source (a file, a folder, a dataset, "-" for standard input), or in memory a list of texts, of
    pairs or of questions with contexts, a data frame or a dataset. Answers go to the file `out`, or one by one with
    their texts to `write`, where one of these is given, and then None is returned. Progress goes to `console`.
    """
    output = None
    if out is not None:
        output = _Output(Path(out), overwrite, resolve_kind(kind) == _VECTOR_KIND)
        output.check()
    given = {
        "top_k": top_k,
        "targets": target,
        "pooling": pooling,
        "normalize": normalize or None,
        "aggregation": aggregation,
        "labels": label,
        "hypothesis": hypothesis,
        "multi_label": multi_label or None,
        "max_answer_length": max_answer_length,
        "max_question_length": max_question_length,
        "doc_stride": doc_stride,
        "handle_impossible_answer": handle_impossible_answer or None,
        "max_length": max_length,
    }
    settings = {name: value for name, value in given.items() if value is not None}
    predictor = pipeline(
        kind, model, tokenizer, device=device, batch_tokens=batch_tokens, precision=precision, **settings
    )
    if predictor.precision is not None and predictor.precision.name != "fp32":
        (console or CleanConsole(stderr=True)).print(f"precision: {predictor.precision}", highlight=False)
    if question is not None and predictor.kind.item_name != QUESTION_ITEM:
        raise InputError(f"--question is for qa, not {kind}; leave it out")
    report = ReadingReport(keeps_long_texts=True)
    items, source = _find_items(predictor, texts, PredictOptions(column, second_column, question), report)
    answers = predictor.stream(items)
    if source is not None:
        answers = show_progress(answers, console or CleanConsole(stderr=True), predictor.kind.item_name)
    collected = _hand_over(predictor, answers, output, write)
    _warn_of_gaps(report, source)
    return collected


@dataclass(frozen=True)
class _Output:
    path: Path
    overwrite: bool
    has_vectors: bool

    def check(self) -> None:
        check_output(self.path, self.overwrite, self.has_vectors)


def _hand_over(
    predictor: Pipeline[Any, Any],
    answers: Iterator[tuple[Any, Any]],
    output: _Output | None,
    write: Callable[[dict[str, Any]], None] | None,
) -> list[Any] | None:
    if output is None and write is None:
        return [answer for _, answer in answers]
    records = (predictor.kind.record(item, answer) for item, answer in answers)
    if output is None:
        assert write is not None
        for record in records:
            write(record)
        return None
    with owning(output.path):
        output.check()  # another command may have written it since
        with open_writer(output.path, predictor.kind.example) as writer:
            for record in records:
                writer.write(record)
    return None


def _find_items(
    predictor: Pipeline[Any, Any], texts: Any, options: PredictOptions, report: ReadingReport
) -> tuple[Iterable[Any], str | None]:
    """What the model is asked, and the source that it is read from, where there is one."""
    source = None
    if isinstance(texts, str | Path):
        source, words = (_find_source(texts) if isinstance(texts, str) else str(texts)), [str(texts)]
    elif _is_table(predictor, texts, options):
        return _take_rows(predictor, as_table(texts, f"{MEMORY}texts"), options), None
    else:
        words = list(texts) if isinstance(texts, Iterable) else [texts]
        if not all(isinstance(word, str) for word in words):
            return _take_objects(predictor, words, options), None
    if predictor.kind.item_name == QUESTION_ITEM:
        return find_questions(words, source, options.question, (options.column, options.second_column)), source
    if source is not None:
        return _read_items(predictor, source, options, report), source
    _check_no_columns(options)
    return _take_words(predictor, words), None


def _is_table(predictor: Pipeline[Any, Any], texts: Any, options: PredictOptions) -> bool:
    """A data frame, a dataset, or dictionaries that the kind of prediction does not take as they are."""
    if hasattr(texts, "columns") or isinstance(getattr(texts, "features", None), Mapping):
        return True
    if not isinstance(texts, Sequence) or not texts or not all(isinstance(one, Mapping) for one in texts):
        return False
    is_taken = predictor.kind.item_name == QUESTION_ITEM or any("text_pair" in one for one in texts)
    return not is_taken or options != PredictOptions()


def _take_objects(predictor: Pipeline[Any, Any], inputs: list[Any], options: PredictOptions) -> list[Any]:
    """Pairs of texts, or questions with their contexts."""
    _check_no_columns(options)
    if options.question is not None:
        raise InputError("--question is asked about texts, and questions with contexts are given; leave it out")
    return list(predictor.kind.as_items(inputs)[0])


def _take_rows(predictor: Pipeline[Any, Any], table: Table, options: PredictOptions) -> list[Any]:
    names = _name_columns(predictor, options)
    for name, option in zip(names, ("column", "second-column"), strict=False):
        if name not in table.columns:
            raise InputError(
                f"{table.path} has no column '{name}'; it has {', '.join(table.columns)}: name it with --{option}"
            )
    read = read_exact if predictor.kind.item_name == QUESTION_ITEM else read_text
    rows = [tuple(read(record, name) for name in names) for record in table.records]
    if options.question is not None:
        return [(options.question, row[0]) for row in rows]
    return [row if len(names) > 1 else row[0] for row in rows]


def _name_columns(predictor: Pipeline[Any, Any], options: PredictOptions) -> tuple[str, ...]:
    if predictor.kind.item_name == QUESTION_ITEM:
        if options.question is not None:
            return (options.column or CONTEXT_COLUMN,)
        return (options.column or QUESTION_COLUMN, options.second_column or CONTEXT_COLUMN)
    if predictor.kind.item_name == _PAIR_KIND or (predictor.kind.may_pair and options.second_column is not None):
        return (options.column or _PAIR_COLUMNS[0], options.second_column or _PAIR_COLUMNS[1])
    if options.second_column is not None:
        raise InputError("--second-column is for pairs of texts (similarity, classify); leave it out")
    return (options.column or _TEXT_COLUMN,)


def _find_source(word: str) -> str | None:
    """The word if it names texts rather than being one: `-`, what is there, or a name as files have."""
    if not word.strip():
        return None
    if word in (STDIN, BUILTIN_CORPUS) or is_dataset(word) or _exists(word):
        return word
    is_name = len(word.split()) == 1 and file_format(Path(word)) is not None
    return word if is_name else None


def _exists(word: str) -> bool:
    try:
        return Path(word).exists()
    except (OSError, ValueError):  # too long for a name, or with characters that no name has: a text
        return False


def _take_words(predictor: Pipeline[Any, Any], words: Sequence[str]) -> list[Any]:
    for word in words:
        refuse_half_characters(word, "the text")
    if predictor.kind.item_name != _PAIR_KIND:
        return list(words)
    if len(words) != _PAIR_SIZE:
        raise InputError(f"{len(words)} texts are given; expected two to compare, or a file of pairs")
    return [(words[0], words[1])]


def _read_items(
    predictor: Pipeline[Any, Any], source: str, options: PredictOptions, report: ReadingReport
) -> Iterator[Any]:
    is_pairs = predictor.kind.item_name == _PAIR_KIND or (predictor.kind.may_pair and options.second_column is not None)
    if source == STDIN:
        if is_pairs:
            raise InputError("pairs are not read from standard input; give a .jsonl, .csv, .tsv or .parquet file")
        _check_no_columns(options)
        return _read_stdin(report)
    if is_pairs:
        first, second = options.column or _PAIR_COLUMNS[0], options.second_column or _PAIR_COLUMNS[1]
        return (tuple(pair) for pair in read_pairs({"path": source, "column": first, "second_column": second}, report))
    if options.second_column is not None:
        raise InputError("--second-column is for pairs of texts (similarity, classify); leave it out")
    return read_source({"path": source, "column": options.column}, report)


def _read_stdin(report: ReadingReport) -> Iterator[str]:
    lines = text_lines(ByteStream(Path("standard input"), sys.stdin.buffer), report)
    first = next(lines, None)
    if first is None:
        raise InputError("standard input holds no text; expected one text per line")
    return chain([first], lines)


def _check_no_columns(options: PredictOptions) -> None:
    if options.column is not None or options.second_column is not None:
        raise InputError("--column and --second-column are for files of records; leave them out")


def _warn_of_gaps(report: ReadingReport, source: str | None) -> None:
    """Whatever has no answer moves the answers after it up."""
    sentences = report.warnings(source)
    if report.num_blank:
        sentences.append(f"{source}: {report.num_blank:,} lines or records without text have no answer")
    for sentence in sentences:
        warnings.warn(sentence, InputWarning, stacklevel=2)


_STDIN_NAME = "standard input"


def find_questions(
    words: Sequence[str], source: str | None, question: str | None, columns: Sequence[str | None]
) -> Iterator[tuple[str, str]]:
    """Questions with their contexts: a file of both, or a `question` about texts, each of them one context.

    `source` is the one word that names something to read, "-" for standard input; a text file is one context, too.
    `columns` name the question and the context, or with a `question` the context alone.
    """
    name = source or next((word for word in words if len(words) == 1 and _is_squad_name(word)), None)
    if name is not None and _has_records(name):
        named = (None, columns[0]) if question is not None else columns
        if question is not None and columns[1] is not None:
            raise InputError(
                "--second-column names the contexts beside --column for questions; with --question use"
                " --column for the contexts"
            )
        chosen = (named[0] or QUESTION_COLUMN, named[1] or CONTEXT_COLUMN)
        return read_question_pairs(name, question, chosen)
    if any(columns):
        raise InputError("--column and --second-column are for files of records; leave them out")
    if question is None:
        raise InputError("there is no question; give --question beside texts, or a file with questions and contexts")
    texts = list(words) if name is None else [_read_whole(name)]
    return ((question, text) for text in texts)


def _is_squad_name(word: str) -> bool:
    return len(word.split()) == 1 and is_squad_file(Path(word))


def _has_records(name: str) -> bool:
    if is_dataset(name) or Path(name).is_dir():
        raise InputError(
            f"questions are not read from {name}; give a .json (SQuAD), .jsonl, .csv, .tsv or .parquet file"
        )
    path = Path(name)
    return is_squad_file(path) or file_format(path) in ("jsonl", "csv", "tsv", "parquet")


def _read_whole(name: str) -> str:
    """A text file or standard input as one text, every character in its place."""
    if name == "-":
        return _decode(ByteStream(Path(_STDIN_NAME), sys.stdin.buffer))
    with open_stream(Path(name)) as stream:
        return _decode(stream)


def _decode(stream: ByteStream) -> str:
    stream.check_text()
    try:
        return b"".join(iter(stream.read, b"")).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{stream.path} is not valid UTF-8 at byte {error.start:,}; convert it to UTF-8") from error
