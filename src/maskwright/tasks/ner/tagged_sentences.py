"""Sentences whose words have tags, from CoNLL files and records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from maskwright.errors import InputError
from maskwright.tasks.config import TaskConfig
from maskwright.tasks.ner.conll import RawSentence, read_conll
from maskwright.tasks.ner.records import read_tagged_records
from maskwright.tasks.ner.schemes import Scheme, convert_tags, find_break
from maskwright.tasks.ner.tagging import OUTSIDE, Tag, find_entities
from maskwright.tasks.ner.written_tags import find_scheme, read_tags
from maskwright.tasks.tables import Table
from maskwright.text.files import file_format
from maskwright.text.huggingface import is_dataset

SCHEMES = {"io": Scheme.IO, "bio": Scheme.BIO, "bioes": Scheme.BIOES}
"""What tags can be converted to."""


@dataclass(frozen=True)
class TaggedSentence:
    source: str
    words: tuple[str, ...]
    tags: tuple[Tag, ...]
    lines: tuple[int, ...]
    """The line of each word."""

    @property
    def place(self) -> str:
        return self.place_of(0)

    @property
    def content(self) -> tuple[Any, ...]:
        """What a model learns from."""
        return self.words, tuple(map(str, self.tags))

    def place_of(self, word: int) -> str:
        """Where a word stands, as 'file:line'."""
        return f"{self.source}:{self.lines[word]}"

    def take(self, words: Sequence[int]) -> TaggedSentence:
        """Some of its words."""
        return TaggedSentence(
            self.source,
            tuple(self.words[word] for word in words),
            tuple(self.tags[word] for word in words),
            tuple(self.lines[word] for word in words),
        )


@dataclass(frozen=True)
class TaggedFile:
    path: Path
    examples: list[TaggedSentence]
    scheme: Scheme
    """Of the examples."""
    written: str
    """What the scheme of the file itself is called."""
    num_comments: int
    num_joined: int = 0
    """Entities that IO could not tell from the one before."""

    def describe(self) -> str:
        num_words = sum(len(example.words) for example in self.examples)
        num_entities = _count_entities(self.examples)
        text = f"{len(self.examples):,} sentences of {self.path}, {num_words:,} words, {num_entities:,} entities"
        text += f", {self.written} tags"
        if self.written != self.scheme.value:
            text += f" converted to {self.scheme.value}"
        if self.num_joined:
            text += f"; {self.num_joined:,} entities become one with the one before"
        return text + (f"; {self.num_comments:,} comments left out" if self.num_comments else "")

    def check_same_form(self, other: TaggedFile) -> None:
        """Refuse a held-out file whose tags are of another scheme."""
        for example in other.examples:
            word = find_break(example.tags, self.scheme)
            if word is not None:
                raise InputError(
                    f"{describe_tag(example, word)}, but {self.path} has {self.written} tags, which have none there;"
                    " repair it, or convert both files with --tag-scheme bio"
                )


def read_tagged_file(source: str | Path | Table, config: TaskConfig) -> TaggedFile:
    """The sentences of a file in the scheme of the file, or in the one asked for."""
    path = source.path if isinstance(source, Table) else Path(source).expanduser()
    raw, num_comments = _read_raw(source if isinstance(source, Table) else path, config)
    if not raw:
        raise InputError(f"{path} holds no sentence; expected a word and its tag in every line")
    examples = _build_examples(path, raw)
    if not _count_entities(examples):
        num_words = sum(len(example.words) for example in examples)
        raise InputError(f"{path} has no entity: all of its {num_words:,} words are tagged O; check the last column")
    rows = [example.tags for example in examples]
    scheme = find_scheme(rows)
    if config.tag_scheme is not None:
        return _convert(path, examples, num_comments, scheme, SCHEMES[config.tag_scheme])
    if scheme is None:
        raise InputError(_explain_mixture(path, examples))
    return TaggedFile(path, examples, scheme, scheme.value, num_comments)


def describe_tag(example: TaggedSentence, word: int) -> str:
    """Where a tag stands, and behind which; the one behind the last word is the end."""
    if word == len(example.tags):
        return f"{example.place_of(word - 1)} has {example.tags[-1]} at the end of its sentence"
    before = example.tags[word - 1] if word else OUTSIDE
    return f"{example.place_of(word)} has {example.tags[word]} behind {before}"


def _read_raw(path: Path | Table, config: TaskConfig) -> tuple[list[RawSentence], int]:
    if config.second_column is not None:
        raise InputError("--second-column is for pairs of texts; ner reads words and tags: leave it out")
    if isinstance(path, Table) or is_dataset(str(path)) or file_format(path) == "jsonl":
        return read_tagged_records(path, config.text_column, config.label_column), 0
    kind = file_format(path)
    if kind in ("csv", "parquet"):
        raise InputError(f"{path} is a .{kind} file; words and tags are read from CoNLL files and .jsonl")
    for option, name in (("text", config.text_column), ("label", config.label_column)):
        if name is not None:
            raise InputError(
                f"--{option}-column is for .jsonl; {path} is read as CoNLL, the word in the first column and the tag in"
                " the last: leave it out"
            )
    return read_conll(path)


def _build_examples(path: Path, raw: Sequence[RawSentence]) -> list[TaggedSentence]:
    tags = read_tags(path, raw)
    return [
        TaggedSentence(str(path), tuple(one.words), tuple(row), tuple(one.lines))
        for one, row in zip(raw, tags, strict=True)
    ]


def _convert(
    path: Path, examples: list[TaggedSentence], num_comments: int, found: Scheme | None, wanted: Scheme
) -> TaggedFile:
    converted = [replace(example, tags=tuple(convert_tags(example.tags, wanted))) for example in examples]
    num_joined = _count_entities(examples) - _count_entities(converted)
    written = "irregular" if found is None else found.value
    return TaggedFile(path, converted, wanted, written, num_comments, num_joined)


def _explain_mixture(path: Path, examples: Sequence[TaggedSentence]) -> str:
    """Where the likeliest scheme is broken."""
    letters = {tag.letter for example in examples for tag in example.tags}
    scheme = Scheme.BIOES if {"E", "S"} & letters else Scheme.BILOU if {"L", "U"} & letters else Scheme.BIO
    broken = [(example, word) for example in examples if (word := find_break(example.tags, scheme)) is not None]
    example, word = broken[0]
    more = f", and {len(broken) - 1:,} more sentences are like it" if len(broken) > 1 else ""
    return (
        f"{describe_tag(example, word)}, which {scheme.value} tags do not have{more}; repair it, or let --tag-scheme"
        " bio take entities as the CoNLL script reads them"
    )


def _count_entities(examples: Sequence[TaggedSentence]) -> int:
    return sum(len(find_entities(example.tags)) for example in examples)
