"""The work of a preparation, cut into tasks: some files of a source in, finished shards out, whoever does it where.

A task reads files that together have about the text of one shard, or one larger file, and cuts what is left after
cleaning into parts of a fixed amount of text, one shard of every split each. Which files a task has depends on their
sizes alone, and its shards on nothing but those files, the tokenizer and the options. So the output is the same for any
number of workers, and what is lost with a worker is done again.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from maskwright.data.shards import ShardInfo, ShardWriter, choose_ids_dtype
from maskwright.errors import InputError
from maskwright.runs.texts import is_held_out
from maskwright.runs.verdicts import Verdict, Verdicts, drop_judged
from maskwright.sections.data import QualityConfig, SourceConfig
from maskwright.storage import read_json, read_record
from maskwright.stores.addresses import is_store_url
from maskwright.text.corpus import ReadingReport
from maskwright.text.files import measure_files
from maskwright.text.quality import DocumentCleaner, QualityReport
from maskwright.text.records import RecordTally
from maskwright.text.sources import describe_no_sentence, list_files, names_dataset, read_part
from maskwright.text.tokenizer.encode import EncodedTexts, TextEncoder
from maskwright.text.tokenizer.tokenizer import Tokenizer, group_texts

SPLITS = ("train", "validation")
_GROUP_CHARS = 250_000


@dataclass(frozen=True)
class PrepareOptions:
    """Options that change the content of the shards, beside sources and tokenizer."""

    validation_share: float = 0.01
    quality: QualityConfig = field(default_factory=QualityConfig)
    part_chars: int = 16_000_000

    def __post_init__(self) -> None:
        if not 0.0 <= self.validation_share <= 1.0:
            raise InputError(f"the validation share is {self.validation_share}; it must lie in [0, 1]")
        if self.part_chars < 1:
            raise InputError(f"the text of a part is {self.part_chars} characters; it must be at least 1")

    @property
    def compares_documents(self) -> bool:
        """Whether a document is judged by the others, so that tasks alone cannot judge it."""
        return self.quality.drop_duplicates or self.quality.drop_near_duplicates


@dataclass(frozen=True)
class PrepareTask:
    name: str
    source: int
    first: int = 0
    end: int | None = None
    """The source's files from `first` to `end`; None: all of it, of a dataset too."""
    finished: tuple[str, ...] = ()
    """The parts that are there already, from an earlier start."""

    @property
    def is_whole_source(self) -> bool:
        return self.end is None


@dataclass
class PartRecord:
    """The record of one finished part of the text."""

    num_documents: int = 0
    num_chars: int = 0
    num_encoded: int = 0
    num_empty: int = 0
    num_unknown: int = 0
    shards: dict[str, ShardInfo | None] | None = None


@dataclass
class TaskRecord:
    """The record of a finished task: its parts, and what reading and cleaning met."""

    parts: list[str]
    num_seen: int
    num_bad: int
    reading: dict[str, Any]
    quality: dict[str, Any]


@dataclass(frozen=True)
class MadePart:
    name: str
    record: PartRecord


def plan_tasks(sources: Sequence[SourceConfig], part_chars: int) -> list[PrepareTask]:
    """All tasks in the order of their texts; few enough files of a source are one task."""
    tasks = []
    for number, source in enumerate(sources):
        groups = _group_files(measure_files(list_files(source)), part_chars)
        if len(groups) < 2:
            tasks.append(PrepareTask(f"{number:03d}", number))
        else:
            tasks += [
                PrepareTask(f"{number:03d}-{task:05d}", number, first, end) for task, (first, end) in enumerate(groups)
            ]
    return tasks


def _group_files(sizes: Sequence[int], num_bytes: int) -> list[tuple[int, int]]:
    """Runs of files of at least so many bytes, but for the last."""
    groups, first, total = [], 0, 0
    for number, size in enumerate(sizes):
        total += size
        if total >= num_bytes:
            groups.append((first, number + 1))
            first, total = number + 1, 0
    if first < len(sizes):
        groups.append((first, len(sizes)))
    return groups


def read_documents(
    sources: Sequence[SourceConfig], task: PrepareTask, cleaner: DocumentCleaner
) -> tuple[Iterator[str], RecordTally]:
    """The clean documents of a task, and the tally of its records."""
    source = sources[task.source]
    # broken records are judged over the whole source, which only a task that has it can do by itself
    tally = RecordTally(source.path, source.max_bad_share if task.is_whole_source else 1.0, ReadingReport())
    files = [] if task.is_whole_source else list_files(source)[task.first : task.end]
    return cleaner.clean(read_part(source, files, tally)), tally


def make_absolute(source: SourceConfig) -> SourceConfig:
    """The same source for a process in another folder."""
    if names_dataset(source.path) or is_store_url(source.path):
        return source
    return source.model_copy(update={"path": os.path.abspath(os.path.expanduser(source.path))})


@dataclass(frozen=True)
class PartMaker:
    """Does tasks; the same in every process that has the sources."""

    sources: Sequence[SourceConfig]
    tokenizer: Tokenizer
    options: PrepareOptions
    verdicts: Verdicts | None = None
    """On duplicates; without, documents are compared with those of the tasks that are done one after another."""

    def give(self, task: PrepareTask, work: Path) -> Iterator[Verdict]:
        return iter(()) if self.verdicts is None else self.verdicts.read(task.name, work)

    def for_nodes(self) -> PartMaker:
        return replace(self, sources=[make_absolute(source) for source in self.sources])

    @contextmanager
    def open(
        self, num_threads: int
    ) -> Iterator[Callable[[PrepareTask, Iterable[Verdict], Path], Iterator[MadePart | TaskRecord]]]:
        """What does one task after another: writes its shards; each new part, and at the end the record of the task."""
        quality = self.options.quality
        cleaner = DocumentCleaner(quality if self.verdicts is None else quality.without_duplicates())
        with TextEncoder(self.tokenizer, num_threads) as encoder:
            yield partial(self._make, encoder, cleaner)

    def _make(
        self,
        encoder: TextEncoder,
        cleaner: DocumentCleaner,
        task: PrepareTask,
        verdicts: Iterable[Verdict],
        folder: Path,
    ) -> Iterator[MadePart | TaskRecord]:
        before = replace(cleaner.report, dropped=Counter(cleaner.report.dropped))
        documents, tally = read_documents(self.sources, task, cleaner)
        if self.verdicts is not None:
            documents = drop_judged(documents, verdicts, cleaner.report)
        names = []
        for part, texts in enumerate(_cut_parts(documents, self.options.part_chars)):
            names.append(f"{task.name}-{part:05d}")
            if names[-1] in task.finished:
                for _ in texts:
                    pass
            else:
                yield MadePart(names[-1], self._write(names[-1], task.source, texts, folder, encoder))
        yield TaskRecord(
            names,
            tally.num_seen,
            tally.num_bad,
            describe_reading(tally.report),
            subtract_reports(cleaner.report, before),
        )

    def _write(self, name: str, source: int, texts: Iterator[str], folder: Path, encoder: TextEncoder) -> PartRecord:
        record = PartRecord()
        dtype = choose_ids_dtype(self.tokenizer.vocab_size)
        train, validation = (ShardWriter(folder / split, name, dtype, source) for split in SPLITS)
        with train, validation:
            for encoded in encoder.encode(group_texts(texts, _GROUP_CHARS)):
                self._add(encoded, train, validation, record)
            record.shards = {"train": train.close(), "validation": validation.close()}
        return record

    def _add(self, encoded: EncodedTexts, train: ShardWriter, validation: ShardWriter, record: PartRecord) -> None:
        share = self.options.validation_share
        held_out = np.asarray([is_held_out(text, share) for text in encoded.texts], dtype=bool)
        for writer, is_its in ((train, ~held_out), (validation, held_out)):
            tokens = np.repeat(is_its, encoded.lengths)
            writer.add(encoded.ids[tokens], encoded.lengths[is_its], encoded.word_starts[tokens])
        record.num_documents += len(encoded.texts)
        record.num_chars += sum(map(len, encoded.texts))
        record.num_encoded += len(encoded.ids)
        record.num_empty += int((encoded.lengths == 0).sum())
        record.num_unknown += int((encoded.ids == self.tokenizer.unk_token_id).sum())


def _cut_parts(documents: Iterator[str], part_chars: int) -> Iterator[Iterator[str]]:
    """Runs of documents of about `part_chars` characters; each must be read to its end before the next."""
    waiting = next(documents, None)

    def one_part() -> Iterator[str]:
        nonlocal waiting
        num_chars = 0
        while waiting is not None and num_chars < part_chars:
            num_chars += len(waiting)
            yield waiting
            waiting = next(documents, None)

    while waiting is not None:
        yield one_part()


def describe_reading(report: ReadingReport) -> dict[str, Any]:
    return {name: value for name, value in asdict(report).items() if not name.startswith("_")}


def subtract_reports(after: QualityReport, before: QualityReport) -> dict[str, Any]:
    """What a cleaner counted in between."""
    counts = {name: getattr(after, name) - getattr(before, name) for name in ("num_seen", "num_kept", "num_changed")}
    return counts | {"dropped": dict(after.dropped - before.dropped)}


class Totals:
    """What reading and cleaning met in all tasks of a preparation, in the order of the tasks."""

    def __init__(self, sources: Sequence[SourceConfig]) -> None:
        self._sources = sources
        self._records: list[dict[int, TaskRecord]] = [{} for _ in sources]
        """Of each source, by the task's first file."""
        self._tallies = [RecordTally(one.path, one.max_bad_share, ReadingReport()) for one in sources]

    def add(self, task: PrepareTask, record: TaskRecord) -> None:
        """Count what a task met; tasks may come in any order, so it is judged when all are there."""
        self._records[task.source][task.first] = record
        tally = self._tallies[task.source]
        tally.num_seen += record.num_seen
        tally.num_bad += record.num_bad
        tally.report.merge(ReadingReport(**record.reading))

    def check(self) -> None:
        """Refuse a source with too many broken records, or without any document."""
        for source, tally, records in zip(self._sources, self._tallies, self._records, strict=True):
            tally.check()
            if not tally.report.num_documents:
                raise tally.describe_no_text()
            if source.sentences and not sum(record.quality["num_seen"] for record in records.values()):
                raise describe_no_sentence(source.path)

    def merge_reading(self) -> ReadingReport:
        total = ReadingReport()
        for record in self._in_order():
            total.merge(ReadingReport(**record.reading))
        return total

    def merge_quality(self) -> QualityReport:
        total = QualityReport()
        for record in self._in_order():
            total.num_seen += record.quality["num_seen"]
            total.num_kept += record.quality["num_kept"]
            total.num_changed += record.quality["num_changed"]
            total.dropped.update(record.quality["dropped"])
        return total

    def list_parts(self) -> list[str]:
        """The names of all parts in the order of their texts."""
        return [name for record in self._in_order() for name in record.parts]

    def list_parts_of_sources(self) -> list[list[str]]:
        """Those of each source."""
        return [[name for _, record in sorted(records.items()) for name in record.parts] for records in self._records]

    def _in_order(self) -> Iterator[TaskRecord]:
        return (records[first] for records in self._records for first in sorted(records))


def read_task_record(file: Path) -> TaskRecord:
    return _read(TaskRecord, file)


def read_part_record(file: Path) -> PartRecord:
    record = _read(PartRecord, file)
    if (record.shards or {}).keys() != set(SPLITS):
        raise _describe_damage(f"{file} is damaged: it does not say what became of its part")
    return record


def _read(kind: type[Any], file: Path) -> Any:
    try:
        values = read_json(file)
        record = read_record(kind, values, file)
    except InputError as error:
        raise _describe_damage(str(error)) from None
    if asdict(record).keys() != values.keys():
        raise _describe_damage(f"{file} is damaged: it does not say what became of its part")
    return record


def _describe_damage(damage: str) -> InputError:
    return InputError(f"{damage}; delete it, and this part of the text is prepared again")
