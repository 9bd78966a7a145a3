"""Descriptions of sources to documents: files of every known format, folders, globs, datasets, the built-in corpus.

The built-in corpus is the English documentation that every Python carries: the language reference topics of `pydoc` and
the docstrings of the standard library. It is read offline and never imported.
"""

from __future__ import annotations

import ast
import functools
import glob
import hashlib
import os
import re
import sysconfig
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from maskwright.errors import InputError
from maskwright.sections.data import BUILTIN_CORPUS, SourceConfig, SourceLike, build_sources
from maskwright.stores.addresses import Place, is_store_url
from maskwright.text import sentences
from maskwright.text.corpus import ReadingReport, text_lines, text_paragraphs
from maskwright.text.fasta import fasta_texts
from maskwright.text.files import file_format, find_files, list_digests, measure_files
from maskwright.text.huggingface import dataset_texts, hub_version, is_dataset, row_texts, saved_folder
from maskwright.text.quality import TextPair
from maskwright.text.records import RecordTally, Texts, csv_texts, describe_no_columns, jsonl_texts, parquet_texts
from maskwright.text.streams import open_stream


def read_sources(sources: SourceLike | Sequence[SourceLike], report: ReadingReport | None = None) -> Iterator[str]:
    """The documents of all sources, one source after the other; weights are the loader's business."""
    for source in build_sources(sources):
        yield from read_source(source, report)


def read_source(source: SourceLike, report: ReadingReport | None = None) -> Iterator[str]:
    """The documents of one source, streamed: never blank, never more than a few in memory; of pairs, both texts.

    A text of more than `MAX_DOCUMENT_CHARS` is several documents.

    Raises `InputError` for what cannot be read, for damaged files, for a missing column, for a larger share of broken
    records than `max_bad_share`, and for a source without any document.
    """
    (config,) = build_sources(source)
    texts = (text for record in _read_records(config, report) for text in record)
    yield from _cut(texts, config) if config.sentences else texts


def read_part(source: SourceConfig, files: Sequence[Place], tally: RecordTally) -> Iterator[str]:
    """The documents of some of a source's files, of all of it if none are given, counted in `tally`.

    Whether too many records are broken, or no document is there, is for the caller to judge, who knows all parts.
    """
    records = chain.from_iterable(_file_documents(path, source, tally) for path in files)
    texts = (text for record in _cut_long(records if files else _documents(source, tally), tally) for text in record)
    yield from chain.from_iterable(map(sentences.split_sentences, texts)) if source.sentences else texts


def _cut(texts: Iterator[str], config: SourceConfig) -> Iterator[str]:
    is_empty = True
    for text in texts:
        for sentence in sentences.split_sentences(text):
            is_empty = False
            yield sentence
    if is_empty:
        raise describe_no_sentence(config.path)


def describe_no_sentence(path: str) -> InputError:
    return InputError(f"{path} holds no sentence: nothing in it ends in . ! or ?; read it as it is instead")


def read_pairs(source: SourceLike, report: ReadingReport | None = None) -> Iterator[TextPair]:
    """The pairs of one source with a `second_column`, as `read_source` reads texts."""
    (config,) = build_sources(source)
    if config.second_column is None:
        raise InputError(f"{config.path} is to be read as pairs of texts; name the second one's column, second_column")
    for first, second in _read_records(config, report):
        yield TextPair(first, second)


def read_rows(
    rows: Iterable[Mapping[str, Any]], column: str | None, report: ReadingReport | None, name: str
) -> Iterator[str]:
    """The texts in a column of records in memory, as `read_source` reads those of a path; errors call them `name`."""
    config = SourceConfig(path=name, column=column)
    tally = _begin_tally(config, report)
    yield from (text for texts in _watch(row_texts(rows, config.path, config.columns, tally), tally) for text in texts)


def _read_records(config: SourceConfig, report: ReadingReport | None) -> Iterator[Texts]:
    tally = _begin_tally(config, report)
    return _watch(_documents(config, tally), tally)


def _begin_tally(config: SourceConfig, report: ReadingReport | None) -> RecordTally:
    return RecordTally(config.path, config.max_bad_share, report if report is not None else ReadingReport())


def _watch(records: Iterator[Texts], tally: RecordTally) -> Iterator[Texts]:
    """The same records, long texts cut; too many broken ones, and none at all, are refused at the end."""
    is_blank = True
    for texts in _cut_long(records, tally):
        is_blank = False
        yield texts
    tally.check()
    if is_blank:
        raise tally.describe_no_text()


def _cut_long(records: Iterator[Texts], tally: RecordTally) -> Iterator[Texts]:
    """A pair is one document whatever its length, and no row holds as much: its texts keep their beginnings."""
    longest = sentences.MAX_DOCUMENT_CHARS
    for texts in records:
        if len(texts[0]) <= longest >= len(texts[-1]) or tally.report.keeps_long_texts:
            yield texts
        elif len(texts) > 1:
            yield tuple(next(sentences.cut_long_text(text)) for text in texts)
        else:
            tally.report.num_documents -= 1  # counted as it was read
            for document in sentences.cut_long_text(texts[0]):
                tally.report.num_documents += 1
                yield (document,)


def names_source(text: str) -> bool:
    """Whether a text looks like the name of a source: a file, a glob, a dataset or the built-in corpus."""
    return names_dataset(text) or (" " not in text and file_format(Path(text)) is not None)


def names_dataset(path: str) -> bool:
    """Whether it is read from somewhere else than files of its own."""
    return path == BUILTIN_CORPUS or is_dataset(path)


def is_plain_text(path: str | Path) -> bool:
    """Whether it is a file without a suffix, which can be read as text alone; one that is not there is refused."""
    place, name = Path(path).expanduser(), str(path)
    if is_store_url(name) or names_dataset(name) or name.startswith("{") or glob.has_magic(name) or place.is_dir():
        return False
    if not place.exists():
        raise InputError(f"no file at {place}; expected a file, a folder, a glob, hf:NAME or {BUILTIN_CORPUS}")
    return not place.suffix


def list_files(source: SourceLike) -> list[Place]:
    """The source's files in reading order; none for the built-in corpus and datasets."""
    (config,) = build_sources(source)
    return [] if names_dataset(config.path) else find_files(config.path)


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
        files = [*sorted(file for file in folder.rglob("*") if file.is_file())]
    described = zip(files, measure_files(files), list_digests(files), strict=True)
    return [{"path": file.as_posix(), "size": size, "hash": digest} for file, size, digest in described]


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


def _file_documents(path: Place, config: SourceConfig, tally: RecordTally) -> Iterator[Texts]:
    kind = file_format(path)
    if kind == "parquet":
        yield from parquet_texts(path, config.columns, tally)
        return
    with open_stream(path) as stream:
        if kind == "jsonl":
            yield from jsonl_texts(stream, config.columns, tally)
        elif kind in ("csv", "tsv"):
            yield from csv_texts(stream, config.columns, tally, delimiter="\t" if kind == "tsv" else ",")
        elif kind == "fasta":
            _check_single(path, config)
            yield from fasta_texts(stream, tally)
        else:
            _check_single(path, config)
            read = text_paragraphs if config.documents == "paragraphs" else text_lines
            for document in read(stream, tally.report):
                yield (document,)


def _check_single(path: Place | str, config: SourceConfig) -> None:
    if config.second_column is not None:
        raise describe_no_columns(path, config.second_column)


_SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3", "pydoc_data"}
_CODE_LINE = re.compile(r"\s*(\w[\w-]* +::=|\||[-=*~^+]{3,})")
_PROMPT = re.compile(r"^\s*(>>>|\.\.\.)(\s|$)", re.MULTILINE)
_HEADING = re.compile(r"^(?=\S[^\n]*\n[*=-]{3,}$)", re.MULTILINE)
_MIN_WORDS = 4
_STATEMENTS = (ast.stmt, ast.ExceptHandler, ast.match_case)


def read_python_documentation() -> list[str]:
    """One document per section of a topic or per docstring, a paragraph to a line; no paragraph occurs twice."""
    return list(_read_documents(Path(sysconfig.get_paths()["stdlib"])))


@functools.cache  # parsing takes seconds, and a run asks for the fingerprint and then for the texts
def _read_documents(stdlib: Path) -> tuple[str, ...]:
    seen: set[str] = set()
    documents = []
    for raw in _raw_documents(stdlib):
        paragraphs = [paragraph for paragraph in dict.fromkeys(_split_paragraphs(raw)) if paragraph not in seen]
        seen.update(paragraphs)
        if paragraphs:
            documents.append("\n".join(paragraphs))
    if not documents:
        raise InputError(f"this Python carries no documentation in {stdlib}; give a text file as data.train")
    return tuple(documents)


def _raw_documents(stdlib: Path) -> Iterator[str]:
    yield from _topics(stdlib / "pydoc_data" / "topics.py")
    for path in sorted(_list_modules(stdlib)):
        yield from _docstrings(path)


def _list_modules(stdlib: Path) -> Iterator[Path]:
    """Skipped folders are not entered: that of installed packages may hold many times as many files."""
    for folder, names, files in os.walk(stdlib):
        names[:] = [name for name in names if name not in _SKIPPED_FOLDERS]
        yield from (Path(folder, file) for file in files if file.endswith(".py"))


def _topics(path: Path) -> Iterator[str]:
    """The strings of the topics table, cut at their underlined headings."""
    for node in ast.walk(_parse(path)):
        if isinstance(node, ast.Dict):
            for value in node.values:
                if isinstance(value, ast.Constant):
                    yield from _HEADING.split(str(value.value))


def _docstrings(path: Path) -> Iterator[str]:
    for node in _walk_statements(path):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield docstring


def _walk_statements(path: Path) -> Iterator[ast.AST]:
    """In the order of `ast.walk`, without the expressions, which are most of a file and hold no definitions."""
    waiting: deque[ast.AST] = deque([_parse(path)])
    while waiting:
        node = waiting.popleft()
        waiting.extend(child for child in ast.iter_child_nodes(node) if isinstance(child, _STATEMENTS))
        yield node


def _parse(path: Path) -> ast.Module:
    """The syntax tree of a source file; of one that is absent or broken, as some systems ship, an empty one."""
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def _split_paragraphs(raw: str) -> Iterator[str]:
    """Unwrapped paragraphs of prose; interpreter sessions, grammar, tables and rulers are left out."""
    for block in re.split(r"\n\s*\n", raw):
        prose = block[: prompt.start()] if (prompt := _PROMPT.search(block)) else block
        lines = [line for line in prose.splitlines() if not _CODE_LINE.match(line)]
        paragraph = " ".join(" ".join(lines).split())
        if len(re.findall(r"[A-Za-z]{2,}", paragraph)) >= _MIN_WORDS:
            yield paragraph
