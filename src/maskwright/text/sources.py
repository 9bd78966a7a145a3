"""Descriptions of sources to documents: files of every known format, folders, globs, datasets, the built-in corpus."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from maskwright.errors import InputError
from maskwright.sections.data import BUILTIN_CORPUS, SourceConfig, SourceLike, build_sources
from maskwright.text.builtin import read_python_documentation
from maskwright.text.corpus import ReadingReport, text_lines, text_paragraphs
from maskwright.text.files import file_format, find_files, hash_file, open_stream
from maskwright.text.huggingface import dataset_texts, hub_version, is_dataset, saved_folder
from maskwright.text.records import RecordTally, Texts, csv_texts, jsonl_texts, parquet_texts
from maskwright.text.sentences import split_sentences
from maskwright.text.text_pairs import TextPair


def read_sources(sources: SourceLike | Sequence[SourceLike], report: ReadingReport | None = None) -> Iterator[str]:
    """The documents of all sources, one source after the other; weights are the loader's business."""
    for source in build_sources(sources):
        yield from read_source(source, report)


def read_source(source: SourceLike, report: ReadingReport | None = None) -> Iterator[str]:
    """The documents of one source, streamed: never blank, never more than a few in memory; of pairs, both texts.

    Raises `InputError` for what cannot be read, for damaged files, for a missing column, for a larger share of broken
    records than `max_bad_share`, and for a source without any document.
    """
    (config,) = build_sources(source)
    texts = (text for record in _read_records(config, report) for text in record)
    yield from _cut(texts, config) if config.sentences else texts


def _cut(texts: Iterator[str], config: SourceConfig) -> Iterator[str]:
    is_empty = True
    for text in texts:
        for sentence in split_sentences(text):
            is_empty = False
            yield sentence
    if is_empty:
        raise InputError(f"{config.path} holds no sentence: nothing in it ends in . ! or ?; read it as it is instead")


def read_pairs(source: SourceLike, report: ReadingReport | None = None) -> Iterator[TextPair]:
    """The pairs of one source with a `second_column`, as `read_source` reads texts."""
    (config,) = build_sources(source)
    if config.second_column is None:
        raise InputError(f"{config.path} is to be read as pairs of texts; name the second one's column, second_column")
    for first, second in _read_records(config, report):
        yield TextPair(first, second)


def _read_records(config: SourceConfig, report: ReadingReport | None) -> Iterator[Texts]:
    report = report if report is not None else ReadingReport()
    tally = RecordTally(config.path, config.max_bad_share, report)
    is_blank = True
    for texts in _documents(config, tally):
        is_blank = False
        yield texts
    tally.check()
    if is_blank:
        broken = f" but {tally.num_bad} broken records, first {report.bad_records[0]}" if tally.num_bad else ""
        raise InputError(f"{config.path} is empty: it holds no text{broken}; expected at least one document")


def list_files(source: SourceLike) -> list[Path]:
    """The source's files in reading order; none for the built-in corpus and datasets."""
    (config,) = build_sources(source)
    return [] if config.path == BUILTIN_CORPUS or is_dataset(config.path) else find_files(config.path)


def fingerprint(source: SourceLike) -> list[dict[str, Any]]:
    """`path`, `size` and content `hash` of everything the source is read from; another list is another source."""
    (config,) = build_sources(source)
    if config.path == BUILTIN_CORPUS:
        content = "\0".join(read_python_documentation()).encode()
        digest = hashlib.blake2b(content, digest_size=16).hexdigest()
        return [{"path": config.path, "size": len(content), "hash": digest}]
    files = list_files(config)
    if not files:
        folder = saved_folder(config.path)
        if folder is None:
            return [{"path": config.path, "size": None, "hash": hub_version(config.path)}]
        files = sorted(file for file in folder.rglob("*") if file.is_file())
    return [{"path": file.as_posix(), "size": file.stat().st_size, "hash": hash_file(file)} for file in files]


def _documents(config: SourceConfig, tally: RecordTally) -> Iterator[Texts]:
    if config.path == BUILTIN_CORPUS:
        _check_single(config.path, config)
        for document in read_python_documentation():
            tally.report.num_documents += 1
            yield (document,)
    elif is_dataset(config.path):
        yield from dataset_texts(config.path, config.columns, tally)
    else:
        for path in find_files(config.path):
            yield from _file_documents(path, config, tally)


def _file_documents(path: Path, config: SourceConfig, tally: RecordTally) -> Iterator[Texts]:
    kind = file_format(path)
    if kind == "parquet":
        yield from parquet_texts(path, config.columns, tally)
        return
    with open_stream(path) as stream:
        if kind == "jsonl":
            yield from jsonl_texts(stream, config.columns, tally)
        elif kind in ("csv", "tsv"):
            yield from csv_texts(stream, config.columns, tally, delimiter="\t" if kind == "tsv" else ",")
        else:
            _check_single(path, config)
            read = text_paragraphs if config.documents == "paragraphs" else text_lines
            for document in read(stream, tally.report):
                yield (document,)


def _check_single(path: Path | str, config: SourceConfig) -> None:
    if config.second_column is not None:
        raise InputError(
            f"{path} has no columns, so no second_column '{config.second_column}'; give pairs as .jsonl, .csv, .tsv,"
            " .parquet or a dataset"
        )
