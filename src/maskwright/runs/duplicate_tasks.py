"""Duplicates among the documents of all tasks of a preparation, found by tasks with bounded memory.

Three rounds, each a set of tasks that any runner does, with files between them:

1. A task of the preparation reads its documents and writes, run by run, their digests, band keys and signatures.
2. A task reads one range of keys from all runs. Documents with equal keys are a pair with the first of them.
3. A task reads the pairs of one run and compares signatures: a verdict on every document.

A file of pairs of numbers is sorted by the first of them, so a range of it is one read. The memory of a task follows
from the number of documents in a run and from the width of the ranges, both of which a limit decides. The verdicts are
those of `ExactDuplicates` and `NearDuplicates` over all documents in order, for any limit and any runner.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.errors import InputError
from maskwright.runs.prepare_tasks import PrepareTask, make_absolute, read_documents
from maskwright.runs.verdicts import FOLDER, JUDGED, name_run
from maskwright.sections.data import QualityConfig, SourceConfig
from maskwright.storage import write_bytes
from maskwright.text.duplicates import (
    NUM_HASHES,
    Words16,
    compute_band_keys,
    compute_digest,
    compute_signatures,
    estimate_similarity,
)
from maskwright.text.quality import DocumentCleaner

EXACT, NEAR = "exact", "near"
SIGNED, SIGNATURES = "signed", "signatures"
_SIGNATURE_BYTES = 2 * NUM_HASHES
_SIGNED_CHARS = 1 << 19
"""Of texts that wait for their signatures, which many texts get faster at once."""
_RUN_BYTES = 2048
"""Of memory for a document of a run, in the first and the last round: its signature, and sorting its keys or pairs."""
_MATCH_BYTES = 192
"""Of memory for a key of a range: its number, its document's, and sorting them."""
_PLACE_BITS = 40
"""A document is the number of its task and, in so many bits, its place there: in the order of the texts."""
_ENTRY = np.dtype([("key", "<u8"), ("document", "<u8")])
_NO_ENTRY = np.zeros(0, dtype=_ENTRY)

Numbers = NDArray[np.uint64]
Made = list[int] | None
"""None when files are written, and at the end the sizes of all: documents, pairs, or duplicates found."""
Doer = AbstractContextManager[Callable[..., Iterator[Made]]]


@dataclass(frozen=True)
class SignTask:
    name: str
    number: int
    part: PrepareTask


@dataclass(frozen=True)
class MatchTask:
    name: str
    kind: str
    first: int
    end: int


@dataclass(frozen=True)
class JudgeTask:
    name: str
    run: int


@dataclass(frozen=True)
class Runs:
    """The runs of all documents in their order."""

    names: tuple[str, ...]
    firsts: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def num_documents(self) -> int:
        return sum(self.sizes)


def list_runs(tasks: Sequence[SignTask], sizes: Sequence[Sequence[int]]) -> Runs:
    """The runs that tasks have written, from the number of documents in each."""
    names, firsts = [], []
    for task, counts in zip(tasks, sizes, strict=True):
        for run, before in enumerate([0, *accumulate(counts)][: len(counts)]):
            names.append(name_run(task.name, run))
            firsts.append((task.number << _PLACE_BITS) + before)
    return Runs(tuple(names), tuple(firsts), tuple(size for counts in sizes for size in counts))


def cut_keys(kind: str, num_entries: int, memory_bytes: int) -> list[MatchTask]:
    """Ranges of keys, which are evenly spread, with as many entries as memory allows."""
    num_ranges = max(1, -(-num_entries * _MATCH_BYTES // memory_bytes))
    bounds = [(number << 64) // num_ranges for number in range(num_ranges + 1)]
    return [MatchTask(f"{kind}-{number:05d}", kind, first, end) for number, (first, end) in enumerate(pairwise(bounds))]


@dataclass(frozen=True)
class SignJob:
    """Reads documents; writes their digests and signatures in runs of as many as memory allows."""

    sources: Sequence[SourceConfig]
    quality: QualityConfig
    memory_bytes: int

    def give(self, task: SignTask, folder: Path) -> Iterator[Any]:
        return iter(())

    def open(self, num_threads: int) -> Doer:
        return nullcontext(self._sign)

    def for_nodes(self) -> SignJob:
        return replace(self, sources=[make_absolute(source) for source in self.sources])

    def _sign(self, task: SignTask, given: Iterable[Any], folder: Path) -> Iterator[Made]:
        cleaner = DocumentCleaner(self.quality.without_duplicates())
        run = _Run(self.quality, max(1, self.memory_bytes // _RUN_BYTES))
        sizes: list[int] = []
        documents, _ = read_documents(self.sources, task.part, cleaner)
        for text in chain(documents, [None]):
            if text is not None:
                run.add(text)
            if run.size and (text is None or run.is_full):
                first = (task.number << _PLACE_BITS) + sum(sizes)
                sizes.append(run.write(folder / FOLDER / SIGNED / name_run(task.name, len(sizes)), first))
                yield None
        yield sizes


class _Run:
    def __init__(self, quality: QualityConfig, capacity: int) -> None:
        self._quality = quality
        self._capacity = capacity
        self.clear()

    def clear(self) -> None:
        self.size = 0
        self._digests: list[int] = []
        self._signatures: list[Words16] = []
        self._waiting: list[str] = []
        self._num_waiting_chars = 0

    @property
    def is_full(self) -> bool:
        return self.size >= self._capacity

    def add(self, text: str) -> None:
        self.size += 1
        if self._quality.drop_duplicates:
            self._digests.append(compute_digest(text))
        if self._quality.drop_near_duplicates:
            self._waiting.append(text)
            self._num_waiting_chars += len(text)
            if self._num_waiting_chars >= _SIGNED_CHARS:
                self._sign()

    def _sign(self) -> None:
        if self._waiting:
            self._signatures.append(compute_signatures(self._waiting))
            self._waiting, self._num_waiting_chars = [], 0

    def write(self, file: Path, first: int) -> int:
        """Write the documents, of which `first` is the first, into files of this name, and begin anew; their number."""
        documents = np.arange(first, first + self.size, dtype=np.uint64)
        self._sign()
        if self._digests:
            write_entries(file.with_name(f"{file.name}.{EXACT}"), np.array(self._digests, dtype=np.uint64), documents)
        if self._signatures:
            signatures = np.concatenate(self._signatures)
            keys = compute_band_keys(signatures, self._quality.near_duplicate_similarity)
            write_entries(file.with_name(f"{file.name}.{NEAR}"), keys.ravel(), np.repeat(documents, keys.shape[1]))
            write_bytes(file.with_name(f"{file.name}.{SIGNATURES}"), signatures.astype("<u2").tobytes())
        size = self.size
        self.clear()
        return size


@dataclass(frozen=True)
class MatchJob:
    """Finds the documents with equal keys; writes each with the first one that has the key."""

    runs: Runs
    memory_bytes: int
    folder: str
    """Where pairs go, beside the runs."""

    def give(self, task: MatchTask, folder: Path) -> Iterator[NDArray[Any]]:
        """The entries of the range, in pieces of at most about as many as memory allows, in the order of the texts."""
        most = max(1, self.memory_bytes // _MATCH_BYTES)
        waiting: list[NDArray[Any]] = []
        for name in self.runs.names:
            entries = read_entries(folder / FOLDER / SIGNED / f"{name}.{task.kind}", task.first, task.end)
            if waiting and sum(map(len, waiting)) + len(entries) > most:
                yield np.concatenate(waiting)
                waiting = []
            waiting += [entries[start : start + most] for start in range(0, len(entries), most)]
        if waiting:
            yield np.concatenate(waiting)

    def open(self, num_threads: int) -> Doer:
        return nullcontext(self._match)

    def for_nodes(self) -> MatchJob:
        return replace(self, runs=Runs((), (), ()))  # only giving needs them

    def _match(self, task: MatchTask, given: Iterable[NDArray[Any]], folder: Path) -> Iterator[Made]:
        known: Numbers = np.zeros(0, dtype=np.uint64)
        known_firsts: Numbers = np.zeros(0, dtype=np.uint64)
        sizes: list[int] = []
        for entries in given:
            order = np.argsort(entries["key"], kind="stable")  # documents stay in the order of the texts
            keys, documents = entries["key"][order], entries["document"][order]
            is_first = np.concatenate([[True], keys[1:] != keys[:-1]])[: keys.size]
            different, firsts = keys[is_first], documents[is_first]
            places = np.searchsorted(known, different)
            is_known = np.zeros(different.size, dtype=bool)
            inside = places < known.size
            is_known[inside] = known[places[inside]] == different[inside]
            firsts[is_known] = known_firsts[places[is_known]]
            firsts_of_all = firsts[np.cumsum(is_first) - 1]
            is_later = documents != firsts_of_all
            file = folder / FOLDER / self.folder / f"{task.name}.{len(sizes):05d}"
            write_entries(file, documents[is_later], firsts_of_all[is_later])
            known = np.insert(known, places[~is_known], different[~is_known])
            known_firsts = np.insert(known_firsts, places[~is_known], firsts[~is_known])
            sizes.append(int(is_later.sum()))
            yield None
        yield sizes


@dataclass(frozen=True)
class JudgeJob:
    """Compares the documents of a run with their firsts; writes the verdicts."""

    runs: Runs
    exact: tuple[str, ...]
    near: tuple[str, ...]
    """The files of all pairs, below the folder."""
    similarity: float
    memory_bytes: int

    def give(
        self, task: JudgeTask, folder: Path
    ) -> Iterator[tuple[NDArray[np.int64], Words16, Words16] | NDArray[Any]]:
        """First the places of exact duplicates, then places with the signatures there and of a first, in pieces."""
        start, size = self.runs.firsts[task.run], self.runs.sizes[task.run]
        exact, near = (
            np.concatenate([read_entries(folder / FOLDER / file, start, start + size) for file in files] or [_NO_ENTRY])
            for files in (self.exact, self.near)
        )
        is_exact = np.zeros(size, dtype=bool)
        is_exact[(exact["key"] - np.uint64(start)).astype(np.int64)] = True
        yield is_exact
        near = near[~is_exact[(near["key"] - np.uint64(start)).astype(np.int64)]]
        places, firsts = (near["key"] - np.uint64(start)).astype(np.int64), near["document"]
        order = np.lexsort((places, firsts))
        places, firsts = places[order], firsts[order]
        is_new = np.ones(places.size, dtype=bool)  # two documents may share several bands
        is_new[1:] = (places[1:] != places[:-1]) | (firsts[1:] != firsts[:-1])
        places, firsts = places[is_new], firsts[is_new]
        if not places.size:
            return
        ours = self._read_signatures(folder, np.arange(start, start + size, dtype=np.uint64))
        at_once = max(1, self.memory_bytes // _RUN_BYTES)
        for begin in range(0, places.size, at_once):
            some = slice(begin, begin + at_once)
            yield places[some], ours[places[some]], self._read_signatures(folder, firsts[some])

    def open(self, num_threads: int) -> Doer:
        return nullcontext(self._judge)

    def for_nodes(self) -> JudgeJob:
        return replace(self, exact=(), near=())  # only giving needs them

    def _judge(self, task: JudgeTask, given: Iterable[Any], folder: Path) -> Iterator[Made]:
        pieces = iter(given)
        verdicts = next(pieces).astype(np.uint8)
        for places, ours, firsts in pieces:
            is_similar = estimate_similarity(ours, firsts) >= self.similarity
            verdicts[places[is_similar]] = 2
        write_bytes(folder / FOLDER / JUDGED / task.name, verdicts.tobytes())
        yield [int(np.count_nonzero(verdicts))]

    def _read_signatures(self, folder: Path, documents: Numbers) -> Words16:
        """Of documents in ascending order."""
        rows = np.zeros((documents.size, NUM_HASHES), dtype="<u2")
        firsts = np.asarray(self.runs.firsts, dtype=np.uint64)
        run_of = np.searchsorted(firsts, documents, side="right") - 1
        offsets = (documents - firsts[run_of]).astype(np.int64) * _SIGNATURE_BYTES
        for run in np.unique(run_of):
            begin, end = np.searchsorted(run_of, [run, run + 1])
            file = folder / FOLDER / SIGNED / f"{self.runs.names[run]}.{SIGNATURES}"
            with file.open("rb") as stream:
                if os.fstat(stream.fileno()).st_size != self.runs.sizes[run] * _SIGNATURE_BYTES:
                    raise _describe_damage(file)
                for row in range(begin, end):
                    stream.seek(offsets[row])
                    stream.readinto(rows[row].data)
        return rows


def write_entries(file: Path, keys: Numbers, documents: Numbers) -> None:
    """Pairs of numbers, sorted by the first; equal ones keep their order."""
    order = np.argsort(keys, kind="stable")
    entries = np.empty(keys.size, dtype=_ENTRY)
    entries["key"], entries["document"] = keys[order], documents[order]
    write_bytes(file, entries.tobytes())


def read_entries(file: Path, first: int, end: int) -> NDArray[Any]:
    """The entries with a key from `first` up to `end`."""
    num_bytes = file.stat().st_size if file.is_file() else -1
    if num_bytes < 0 or num_bytes % _ENTRY.itemsize:
        raise _describe_damage(file)
    if not num_bytes:
        return _NO_ENTRY
    keys = np.memmap(file, dtype=_ENTRY, mode="r")["key"]
    start, stop = bisect_left(keys, first), bisect_left(keys, end)
    with file.open("rb") as stream:
        stream.seek(start * _ENTRY.itemsize)
        return np.frombuffer(stream.read((stop - start) * _ENTRY.itemsize), dtype=_ENTRY)


def count_entries(file: Path) -> int:
    return file.stat().st_size // _ENTRY.itemsize


def _describe_damage(file: Path) -> InputError:
    return InputError(
        f"{file} is missing or damaged; delete the folder {file.parent.parent}, and duplicates are searched again"
    )
