"""Train a tokenizer on a corpus of any size: words counted by tasks, counts merged, the vocabulary learnt from them.

A task counts the words of some files and writes them in the order of the words, in pieces of a fixed amount of text, so
its memory is bounded. The files are merged as streams. What grows with the corpus is the number of different words,
which the caller may bound.
"""

from __future__ import annotations

import heapq
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from maskwright.errors import InputError, RunError, check_count
from maskwright.runs.prepare import describe_source
from maskwright.runs.prepare_tasks import (
    PrepareTask,
    TaskRecord,
    Totals,
    describe_reading,
    make_absolute,
    plan_tasks,
    read_documents,
    read_task_record,
    subtract_reports,
)
from maskwright.runs.task_runners import choose_runner
from maskwright.sections.data import QualityConfig, SourceConfig
from maskwright.storage import read_json, write_bytes
from maskwright.text.quality import DocumentCleaner, QualityReport
from maskwright.text.tokenizer.counted import (
    balance_counts,
    check_countable,
    check_sample,
    count_words,
    is_sampled,
    train_on_counts,
)
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.text.tokenizer.train import build_plan

_TASK_BYTES = 64_000_000
_PIECE_CHARS = 64_000_000
_FILES_AT_ONCE = 64
_MERGED = "merged."
_JOB_FILE = "job.json"
_VERSION = 1
"""Of what a task counts."""

Counted = tuple[str, int]


@dataclass(frozen=True)
class CountJob:
    """Counts the words of a sample of the documents."""

    sources: Sequence[SourceConfig]
    type: str
    lowercase: bool
    sample: float
    seed: int
    piece_chars: int

    def give(self, task: PrepareTask, folder: Path) -> Iterator[Any]:
        return iter(())

    def for_nodes(self) -> CountJob:
        return replace(self, sources=[make_absolute(source) for source in self.sources])

    def open(self, num_threads: int) -> AbstractContextManager[Callable[..., Iterator[TaskRecord | None]]]:
        return nullcontext(self._count)

    def _count(self, task: PrepareTask, given: Iterable[Any], folder: Path) -> Iterator[TaskRecord | None]:
        """None when a file is written, and at the end the record of the task, whose parts are these files."""
        cleaner = DocumentCleaner(QualityConfig())
        documents, tally = read_documents(self.sources, task, cleaner)
        chosen = (text for text in documents if is_sampled(text, self.sample, self.seed))
        names: list[str] = []
        waiting = next(chosen, None)

        def one_piece() -> Iterator[str]:
            nonlocal waiting
            num_chars = 0
            while waiting is not None and num_chars < self.piece_chars:
                num_chars += len(waiting)
                yield waiting
                waiting = next(chosen, None)

        while waiting is not None:
            words = count_words(one_piece(), self.type, self.lowercase)
            names.append(f"{task.name}.{len(names):05d}")
            write_bytes(folder / names[-1], b"".join(map(_write_line, sorted(words.items()))))
            yield None
        yield TaskRecord(
            names,
            tally.num_seen,
            tally.num_bad,
            describe_reading(tally.report),
            subtract_reports(cleaner.report, QualityReport()),
        )


def train_by_counts(
    sources: Sequence[SourceConfig],
    type: str = "wordpiece",
    vocab_size: int = 30522,
    lowercase: bool = True,
    min_frequency: int = 2,
    *,
    special_tokens: Sequence[str] = (),
    sample: float = 1.0,
    seed: int = 0,
    max_words: int | None = None,
    alpha: float | None = None,
    on: str | None = None,
    num_workers: int | None = None,
    keep_in: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Tokenizer:
    """The tokenizer that `train_tokenizer` learns from the same documents, whoever counts their words.

    `sample` is the share of documents to count, chosen by a hash of their text and the `seed`. Of more than `max_words`
    different words only the most frequent are learnt from, which is said. `alpha` balances the sources: the share of
    each is its size to this power. With `keep_in`, a folder that is made for it,
    a call after a killed one counts only what that one has not; at the end it is removed.
    """
    check_countable(type)
    check_sample(sample, seed)
    if max_words is not None:
        check_count("max_words", max_words)
    plan = build_plan(vocab_size, lowercase, min_frequency, special_tokens)
    runner = choose_runner(on, num_workers or os.cpu_count() or 1)
    tasks = plan_tasks(sources, _TASK_BYTES)
    totals = Totals(sources)
    job = CountJob(sources, type, lowercase, sample, seed, _PIECE_CHARS)
    with _keeping(keep_in, job, say) as folder:
        waiting = []
        for task in tasks:
            record = _find_record(folder, task)
            if record is None:
                waiting.append(task)
            else:
                totals.add(task, record)
        num_done = len(tasks) - len(waiting)
        if num_done:
            say(f"going on after {num_done} of {len(tasks)} tasks")
        for task, made in runner.run(job, waiting, folder):
            if made is not None:
                write_bytes(_name_record(folder, task), json.dumps(asdict(made)).encode())
                totals.add(task, made)
                num_done += 1
                say(f"words counted in {num_done} of {len(tasks)} tasks")
        totals.check()
        for warning in totals.merge_reading().warnings():
            say(warning)
        merged = _merge_files([folder / name for name in totals.list_parts()], folder)
        if alpha is not None:
            parts = [[folder / name for name in names] for names in totals.list_parts_of_sources()]
            merged = iter(balance_counts([dict(_merge_files(files, folder)) for files in parts], alpha).items())
        words = dict(merged if max_words is None else _keep_frequent(merged, max_words, say))
    if not words and sample < 1:
        raise InputError(f"a sample of {sample:g} of the documents holds no word; take a larger one")
    return train_on_counts(words, type, plan)


@contextmanager
def _keeping(folder: Path | None, job: CountJob, say: Callable[[str], None]) -> Iterator[Path]:
    """A folder for counts: a temporary one, or one that stays if the block ends with an error."""
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="words-") as temporary:
            yield Path(temporary)
        return
    described = asdict(job) | {"sources": [describe_source(source) for source in job.sources]}
    wanted = {"job": described, "task_bytes": _TASK_BYTES, "version": _VERSION}
    file = folder / _JOB_FILE
    if folder.exists() and (not file.is_file() or read_json(file) != json.loads(json.dumps(wanted))):
        shutil.rmtree(folder)
    if not file.is_file():
        write_bytes(file, json.dumps(wanted).encode())
    try:
        yield folder
    except OSError as error:
        raise RunError(
            f"cannot write {error.filename or folder}: {error.strerror}; what is counted stays in {folder}, the same"
            " command goes on with it"
        ) from error
    shutil.rmtree(folder)


def _name_record(folder: Path, task: PrepareTask) -> Path:
    return folder / f"{task.name}.json"


def _find_record(folder: Path, task: PrepareTask) -> TaskRecord | None:
    """That of a task whose words were counted before."""
    file = _name_record(folder, task)
    record = read_task_record(file) if file.is_file() else None
    return record if record is None or all((folder / name).is_file() for name in record.parts) else None


def _merge_files(files: Sequence[Path], folder: Path) -> Iterator[Counted]:
    """Every word once, with its count in all files, in the order of the words."""
    num_made = 0
    while len(files) > _FILES_AT_ONCE:
        some, files = files[:_FILES_AT_ONCE], files[_FILES_AT_ONCE:]
        made = folder / f"{_MERGED}{num_made:05d}"
        num_made += 1
        with made.open("wb") as stream:
            stream.writelines(map(_write_line, _merge(some)))
        for file in some:
            if file.name.startswith(_MERGED):  # what tasks have counted stays until the end
                file.unlink()
        files = [*files, made]
    yield from _merge(files)


def _merge(files: Sequence[Path]) -> Iterator[Counted]:
    with ExitStack() as stack:
        streams = [map(_read_line, stack.enter_context(file.open("rb"))) for file in files]
        for word, counted in groupby(heapq.merge(*streams), key=itemgetter(0)):
            yield word, sum(count for _, count in counted)


def _keep_frequent(merged: Iterator[Counted], max_words: int, say: Callable[[str], None]) -> list[Counted]:
    """The most frequent words in their order, those of equal counts by their order."""
    num_words = 0

    def counted() -> Iterator[tuple[int, str]]:
        nonlocal num_words
        for word, count in merged:
            num_words += 1
            yield -count, word

    kept = heapq.nsmallest(max_words, counted())
    if num_words > max_words:
        say(f"{num_words:,} different words; learning from the {max_words:,} that occur {-kept[-1][0]:,} times or more")
    return sorted((word, -count) for count, word in kept)


def _write_line(counted: Counted) -> bytes:
    return json.dumps(counted).encode() + b"\n"


def _read_line(line: bytes) -> Counted:
    word, count = json.loads(line)
    return word, count
