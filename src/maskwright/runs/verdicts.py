"""What a search for duplicates found: a verdict on every document of the tasks of a preparation, in files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from maskwright.errors import InputError, RunError
from maskwright.text.quality import QualityReport

FOLDER = "duplicates"
JUDGED = "judged"
REASONS = {1: "duplicate", 2: "near duplicate"}
"""To drop a document, by its verdict; 0 is to keep it."""

Verdict = NDArray[np.uint8]


def name_run(task: str, run: int) -> str:
    return f"{task}.{run:05d}"


@dataclass(frozen=True)
class Verdicts:
    sizes: Mapping[str, list[int]]
    """By the task's name, the number of documents in each of its runs."""

    def read(self, task: str, work: Path) -> Iterator[Verdict]:
        """The verdicts on a task's documents, run by run."""
        for run, size in enumerate(self.sizes[task]):
            file = work / FOLDER / JUDGED / name_run(task, run)
            content = file.read_bytes() if file.is_file() else b""
            if len(content) != size:
                raise InputError(
                    f"{file} is missing or damaged; delete {work / FOLDER}, and duplicates are searched again"
                )
            yield np.frombuffer(content, dtype=np.uint8)


def drop_judged(documents: Iterable[str], verdicts: Iterable[Verdict], report: QualityReport) -> Iterator[str]:
    """The documents that are to be kept; the others are counted as the cleaner would have."""
    every = (int(verdict) for piece in verdicts for verdict in piece)
    for document in documents:
        verdict = next(every, None)
        if verdict is None:
            raise _describe_change()
        if verdict:
            report.num_kept -= 1
            report.dropped[REASONS[verdict]] += 1
        else:
            yield document
    if next(every, None) is not None:
        raise _describe_change()


def _describe_change() -> RunError:
    return RunError("the sources changed while they were prepared; start again once they stay as they are")
