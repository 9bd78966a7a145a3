"""Predict from the command line's words: a model by name, texts from anywhere, answers to a file or a stream."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from rich.console import Console

from maskwright.errors import InputError, InputWarning
from maskwright.inference.outputs import check_output, format_json, open_writer
from maskwright.inference.pipeline import Pipeline, pipeline, resolve_kind
from maskwright.inference.progress import show_progress
from maskwright.inference.qa import QUESTION_ITEM
from maskwright.runs.predict_questions import find_questions
from maskwright.sections.data import BUILTIN_CORPUS
from maskwright.text.corpus import ReadingReport, text_lines
from maskwright.text.files import ByteStream, file_format
from maskwright.text.huggingface import is_dataset
from maskwright.text.sources import read_pairs, read_source

STDIN = "-"
_PAIR_COLUMNS = ("sentence1", "sentence2")
_PAIR_KIND = "pair"
_VECTOR_KIND = "embed"
_PAIR_SIZE = 2


@dataclass(frozen=True)
class PredictOptions:
    column: str | None = None
    second_column: str | None = None
    out: Path | None = None
    """A file for the answers; None: JSON lines go to `write`."""
    overwrite: bool = False
    device: str | None = None
    batch_tokens: int | None = None
    question: str | None = None
    """Asked about every text; for qa alone."""


def predict(
    kind: str,
    model: str,
    words: Sequence[str],
    options: PredictOptions,
    settings: Mapping[str, Any],
    write: Callable[[str], None],
    console: Console,
) -> None:
    """Answer the texts that the words are, or are read from; progress of reading goes to the console."""
    if options.out is not None:
        check_output(options.out, options.overwrite, has_vectors=resolve_kind(kind) == _VECTOR_KIND)
    predictor = pipeline(kind, model, device=options.device, batch_tokens=options.batch_tokens, **settings)
    report = ReadingReport()
    source = _find_source(words)
    if options.question is not None and predictor.kind.item_name != QUESTION_ITEM:
        raise InputError(f"--question is for qa, not {kind}; leave it out")
    if predictor.kind.item_name == QUESTION_ITEM:
        questions = find_questions(words, source, options.question, (options.column, options.second_column))
        records = predictor.records(questions)
        records = records if source is None else show_progress(records, console, QUESTION_ITEM)
    elif source is None:
        _check_no_columns(options)
        records = predictor.records(_take_words(predictor, words))
    else:
        items = _read_items(predictor, source, options, report)
        records = show_progress(predictor.records(items), console, predictor.kind.item_name)
    if options.out is None:
        for record in records:
            write(format_json(record))
    else:
        with open_writer(options.out, predictor.kind.example) as writer:
            for record in records:
                writer.write(record)
    _warn_of_gaps(report, source)


def _find_source(words: Sequence[str]) -> str | None:
    """The one word if it names texts rather than being one: `-`, what is there, or a name as files have."""
    if len(words) != 1 or not words[0].strip():
        return None
    (word,) = words
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
        if any("\ud800" <= character <= "\udfff" for character in word):
            raise InputError(f"the text {word!a:.60} is not UTF-8; convert it, or give it as a file")
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
