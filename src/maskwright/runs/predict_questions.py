"""Questions and contexts from the command line's words."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from maskwright.errors import InputError
from maskwright.tasks.qa.examples import CONTEXT_COLUMN, QUESTION_COLUMN, is_squad_file, read_question_pairs
from maskwright.text.files import ByteStream, file_format, open_stream
from maskwright.text.huggingface import is_dataset

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
