"""The rounds of a search for duplicates, one after another; a killed search goes on where it was."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from maskwright.errors import InputError
from maskwright.runs.duplicate_tasks import (
    EXACT,
    NEAR,
    SIGNED,
    JudgeJob,
    JudgeTask,
    Made,
    MatchJob,
    MatchTask,
    SignJob,
    SignTask,
    count_entries,
    cut_keys,
    list_runs,
)
from maskwright.runs.prepare_tasks import PrepareTask
from maskwright.runs.task_runners import Job, Runner, TaskT
from maskwright.runs.verdicts import FOLDER, JUDGED, Verdicts
from maskwright.sections.data import QualityConfig, SourceConfig
from maskwright.storage import read_json, read_record, write_text

MEMORY_BYTES = 1 << 30
_FINISHED = "finished.json"
_SMALLEST_MEMORY = 1 << 16


@dataclass
class _Sizes:
    """The record of a finished task, or of the search: how much its files hold."""

    sizes: dict[str, list[int]] = field(default_factory=dict)


def check_memory(memory_bytes: int) -> None:
    if memory_bytes < _SMALLEST_MEMORY:
        raise InputError(
            f"the memory for comparing documents is {memory_bytes:,} bytes; give at least {_SMALLEST_MEMORY:,}"
        )


@dataclass(frozen=True)
class DuplicateSearch:
    work: Path
    runner: Runner
    say: Callable[[str], None]
    memory_bytes: int = MEMORY_BYTES
    """Of one worker, for what is compared."""

    def run(self, sources: Sequence[SourceConfig], quality: QualityConfig, tasks: Sequence[PrepareTask]) -> Verdicts:
        """Judge every document of the tasks by all documents before it, in the order of the tasks."""
        folder = self.work / FOLDER
        finished = folder / _FINISHED
        if not finished.is_file():
            sizes = self._search(sources, quality, tasks)
            write_text(finished, json.dumps({"sizes": sizes}) + "\n")
        for other in folder.iterdir():
            if other.is_dir() and other.name != JUDGED:
                shutil.rmtree(other)
        return Verdicts(_read_sizes(finished))

    def _search(
        self, sources: Sequence[SourceConfig], quality: QualityConfig, tasks: Sequence[PrepareTask]
    ) -> dict[str, list[int]]:
        signs = [SignTask(task.name, number, task) for number, task in enumerate(tasks)]
        signed = self._do(SIGNED, "reading", SignJob(sources, quality, self.memory_bytes), signs)
        runs = list_runs(signs, [signed[task.name] for task in signs])
        matches: list[MatchTask] = []
        for kind, is_wanted in ((EXACT, quality.drop_duplicates), (NEAR, quality.drop_near_duplicates)):
            if is_wanted:
                files = (self.work / FOLDER / SIGNED / f"{name}.{kind}" for name in runs.names)
                matches += cut_keys(kind, sum(map(count_entries, files)), self.memory_bytes)
        place = f"matched-{sum(match.kind == EXACT for match in matches)}-{len(matches)}"
        matched = self._do(place, "comparing", MatchJob(runs, self.memory_bytes, place), matches)
        exact, near = (
            tuple(
                f"{place}/{task.name}.{number:05d}"
                for task in matches
                if task.kind == kind
                for number in range(len(matched[task.name]))
            )
            for kind in (EXACT, NEAR)
        )
        judges = [JudgeTask(name, run) for run, name in enumerate(runs.names)]
        judge = JudgeJob(runs, exact, near, quality.near_duplicate_similarity, self.memory_bytes)
        judged = self._do(JUDGED, "judging", judge, judges)
        num_found = sum(map(sum, judged.values()))
        self.say(f"duplicates: {num_found:,} of {runs.num_documents:,} documents")
        return {task.name: signed[task.name] for task in signs}

    def _do(self, name: str, act: str, job: Job[TaskT, Made], tasks: Sequence[TaskT]) -> dict[str, list[int]]:
        """The sizes of the files that each task of a round has written, now or before."""
        folder = self.work / FOLDER / name
        folder.mkdir(parents=True, exist_ok=True)
        sizes: dict[str, list[int]] = {task.name: [] for task in tasks}
        waiting = []
        for task in tasks:
            file = folder / f"{task.name}.json"
            if file.is_file():
                sizes |= _read_sizes(file)
            else:
                waiting.append(task)
        num_left = len(waiting)
        for task, made in self.runner.run(job, waiting, self.work):
            if made is not None:
                sizes[task.name] = made
                write_text(folder / f"{task.name}.json", json.dumps({"sizes": {task.name: made}}) + "\n")
                num_left -= 1
                self.say(f"duplicates: {act}, {len(tasks) - num_left} of {len(tasks)} tasks")
        return sizes


def _read_sizes(file: Path) -> dict[str, list[int]]:
    return read_record(_Sizes, read_json(file), file).sizes
