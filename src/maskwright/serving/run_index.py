"""The runs of a folder and what state they are in, found again quickly: what did not change is not read again."""

from __future__ import annotations

import json
import math
import os
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from maskwright.errors import InputError
from maskwright.ownership import LOCK_FILE, is_owned
from maskwright.runs.folder import RunFolder
from maskwright.serving.metrics_tail import read_last_values
from maskwright.storage import PARSING_ERRORS, open_regular
from maskwright.untrusted import read_yaml

_FRESH_S = 1.0
"""A look at the folder serves all who ask within this time."""
_MOST_DEEP = 8
_MOST_FINAL_BYTES = 2**22
_BEGUN_FILES = {"data.json", "metrics.jsonl", "final.json"}
"""Beside config.yaml one of these makes a folder a run; people keep files of the first name of their own."""
TASK_FILE = "task.yaml"
STATES = ("running", "finished", "stopped", "failed", "unknown")
SORTED_BY = (
    *("name", "state", "kind", "step", "loss", "val_loss", "accuracy", "tokens_per_s"),
    *("started", "updated", "seconds_left"),
)
Stamp = tuple[int, int]
"""Time of the last change in nanoseconds, and size."""
_UNSETTLED: Stamp = (0, 0)
_SETTLED_NS = 100_000_000
"""Clocks of file systems tick: a folder that changed so shortly ago may change again under the same time."""


@dataclass(frozen=True)
class FoundRun:
    """A run folder, and what its files said when they were last read."""

    name: str
    """The path below the folder of runs, with slashes."""
    folder: RunFolder
    stamp: Stamp
    """Of the folder, which changes whenever a file in it appears or is replaced."""
    files: frozenset[str]
    started: float
    metrics_stamp: Stamp | None = None
    last: dict[str, float] = field(default_factory=dict)
    final: dict[str, Any] | None = None
    state: str = "unknown"
    updated: float = 0.0

    @cached_property
    def metrics_path(self) -> str:
        """As text: with thousands of runs, paths take most of the time."""
        return str(self.folder.metrics_file)

    @property
    def kind(self) -> str:
        if TASK_FILE in self.files:
            return "finetune"
        return "adapt" if "forgetting.json" in self.files else "pretrain"

    @property
    def seconds_left(self) -> float | None:
        progress, elapsed_s = self.last.get("progress"), self.last.get("elapsed_s")
        if self.state != "running" or not progress or elapsed_s is None:
            return None
        return max(0.0, elapsed_s * (1.0 - progress) / progress)

    @property
    def max_steps(self) -> int | None:
        """At which step the run ends, as far as it can be told from its progress; a budget of time makes it a guess."""
        step, progress = self.last.get("step"), self.last.get("progress")
        return round(step / progress) if step and progress else None

    def describe(self) -> dict[str, Any]:
        last, final = self.last, self.final or {}
        accuracies = ("accuracy", "pearson", "exact", "val_mlm_accuracy", "val_clm_accuracy", "val_accuracy")
        known = {**last, **{key: value for key, value in final.items() if isinstance(value, int | float)}}
        return {
            "name": self.name,
            "state": self.state,
            "kind": self.kind,
            "step": last.get("step", final.get("steps")),
            "max_steps": self.max_steps,
            "progress": last.get("progress"),
            "loss": last.get("loss", final.get("train_loss")),
            "val_loss": final.get("loss", last.get("val_loss")),
            "accuracy": next((known[key] for key in accuracies if key in known), None),
            "tokens_per_s": last.get("tokens_per_s"),
            "data_wait": last.get("data_wait"),
            "started": self.started,
            "updated": self.updated,
            "seconds_left": self.seconds_left,
        }


class RunIndex:
    """Runs are known by name alone: a name that is no key here leads to no file, whatever it spells."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise InputError(f"{folder} is no folder; give one with runs in it, such as runs/")
        self.folder = folder.resolve()
        self._runs: dict[str, FoundRun] = {}
        self._owned: dict[Path, bool] = {}
        self._settings: dict[str, tuple[Stamp, dict[str, Any]]] = {}
        self._looked_s = -math.inf
        self._lock = threading.Lock()

    def list_runs(self) -> list[FoundRun]:
        with self._lock:
            if time.monotonic() - self._looked_s > _FRESH_S:
                self._owned = {}
                self._runs = {run.name: run for run in self._look()}
                self._settings = {name: kept for name, kept in self._settings.items() if name in self._runs}
                self._looked_s = time.monotonic()
            return list(self._runs.values())

    def find(self, name: str) -> FoundRun | None:
        """One that was seen is looked at alone."""
        with self._lock:
            known = self._runs.get(name)
            if known is not None:
                self._owned = {}
                found = next(self._look_at(known.folder.path, name, _MOST_DEEP, []), None)
                if found is not None:
                    self._runs[name] = found
                    return found
        self.list_runs()
        return self._runs.get(name)

    def read_settings(self, run: FoundRun) -> dict[str, Any]:
        """The values of config.yaml, and under `task` those of task.yaml; a file that is damaged has none."""
        kept = self._settings.get(run.name)
        if kept is not None and kept[0] == run.stamp:
            return kept[1]
        values = _read_yaml(run.folder.config_file)
        if TASK_FILE in run.files:
            values = {**values, "task": _read_yaml(run.folder.path / TASK_FILE)}
        self._settings[run.name] = run.stamp, values
        return values

    def _look(self) -> Iterator[FoundRun]:
        folders = [(self.folder, "", 0)]
        while folders:
            folder, name, depth = folders.pop()
            yield from self._look_at(folder, name, depth, folders)

    def _look_at(self, folder: Path, name: str, depth: int, others: list[tuple[Path, str, int]]) -> Iterator[FoundRun]:
        """The run in a folder, or else the folders in it among the others."""
        known = self._runs.get(name or folder.name)
        try:
            stamp = _stamp(os.stat(folder, follow_symlinks=False))
            if known is not None and known.stamp == stamp and known.folder.path == folder:
                yield self._update(known)
                return
            with os.scandir(folder) as entries:
                found = list(entries)
        except OSError:  # removed meanwhile, or not ours to read
            return
        files = frozenset(entry.name for entry in found if entry.is_file(follow_symlinks=False))
        if "config.yaml" in files and files & _BEGUN_FILES:
            is_settled = time.time_ns() - stamp[0] > _SETTLED_NS
            started = _find_mtime(folder / "config.yaml", stamp)
            run = FoundRun(name or folder.name, RunFolder(folder), stamp if is_settled else _UNSETTLED, files, started)
            if "final.json" in files:
                run = replace(run, final=_read_final(run.folder.final_file))
            yield self._update(run)
        elif depth < _MOST_DEEP:
            below = [entry.name for entry in found if entry.is_dir(follow_symlinks=False)]
            shown = [one for one in below if not one.startswith(".")]
            others += [(folder / one, f"{name}/{one}".lstrip("/"), depth + 1) for one in shown]

    def _update(self, run: FoundRun) -> FoundRun:
        """What may change without a change of the folder: lines that are added, and the beat of an owner."""
        try:
            facts = os.stat(run.metrics_path, follow_symlinks=False)
        except OSError:
            stamp, last, updated = None, {}, run.started
        else:
            stamp, last, updated = _stamp(facts), run.last, facts.st_mtime
            if stamp != run.metrics_stamp:
                is_longer = run.metrics_stamp is not None and stamp[1] > run.metrics_stamp[1]
                last = {**(last if is_longer else {}), **read_last_values(run.folder.metrics_file)}
        state = self._find_state(run, last)
        if stamp == run.metrics_stamp and state == run.state and run.updated:
            return run
        return replace(run, metrics_stamp=stamp, last=last, updated=max(updated, run.started), state=state)

    def _find_state(self, run: FoundRun, last: dict[str, float]) -> str:
        if run.final is not None:
            return "failed" if "trouble" in run.final or not run.final else "finished"
        if any(self._is_owned(folder) for folder in self._list_owned_folders(run)):
            return "running"
        return "stopped" if last else "unknown"

    def _list_owned_folders(self, run: FoundRun) -> Sequence[Path]:
        """Runs of several seeds are owned by the folder that holds them."""
        parents = [path for path in run.folder.path.parents if path.is_relative_to(self.folder)]
        return run.folder.path, *parents[:2]

    def _is_owned(self, folder: Path) -> bool:
        if folder not in self._owned:
            lock = folder / LOCK_FILE
            self._owned[folder] = _is_regular(lock) and is_owned(lock)
        return self._owned[folder]


def _stamp(facts: os.stat_result) -> Stamp:
    return facts.st_mtime_ns, facts.st_size


def _find_mtime(file: Path, otherwise: Stamp) -> float:
    try:
        return file.stat(follow_symlinks=False).st_mtime
    except OSError:
        return otherwise[0] / 1e9


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat(follow_symlinks=False).st_mode)
    except OSError:
        return False


def _read_final(file: Path) -> dict[str, Any]:
    """Nothing where it is damaged."""
    try:
        with open_regular(file) as opened:
            values = json.loads(opened.read(_MOST_FINAL_BYTES))
    except (OSError, *PARSING_ERRORS):
        return {}
    return values if isinstance(values, dict) else {}


def _read_yaml(file: Path) -> dict[str, Any]:
    try:
        values = read_yaml(file) if _is_regular(file) else None
    except (OSError, InputError):
        return {}
    return values if isinstance(values, dict) else {}
