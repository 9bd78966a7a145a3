"""The board: the runs of a folder over HTTP, read from their files alone; nothing is asked of a process that trains."""

from __future__ import annotations

import json
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Annotated, Any

import orjson
from fastapi import FastAPI, Query, Response

from maskwright.config import flatten
from maskwright.models.files.model_folder import list_checkpoints
from maskwright.runs.compare import find_differences
from maskwright.runs.predictions import read_predictions
from maskwright.serving.metrics_tail import MetricsTail
from maskwright.serving.page import read_page_file
from maskwright.serving.refusals import Refusal
from maskwright.serving.run_index import SORTED_BY, FoundRun, RunIndex

_FIRST_READ_S = 0.25
"""How long a request waits for a file that is read for the first time; the rest is read after it."""
_MOST_TAILS = 32
_MOST_ROWS, _MOST_POINTS, _MOST_COMPARED = 1_000, 20_000, 20


def add_board(app: FastAPI, runs_folder: Path) -> None:
    """Put the page at /board and its data at /api/runs; an `InputError` where there is no such folder."""
    board = Board(runs_folder)
    app.get("/board", include_in_schema=False)(lambda: read_page_file("board.html"))
    board.add_routes(app)


class Board:
    def __init__(self, runs_folder: Path) -> None:
        self.index = RunIndex(runs_folder)
        self._tails: OrderedDict[Path, MetricsTail] = OrderedDict()
        self._reading: set[Path] = set()
        self._reader = ThreadPoolExecutor(1, "metrics")
        self._lock = Lock()

    def add_routes(self, app: FastAPI) -> None:
        """The most special first: names of runs have slashes."""
        app.get("/api/runs", tags=["board"])(self.list_runs)
        app.get("/api/runs/diff", tags=["board"])(self.compare)
        app.get("/api/runs/{name:path}/metrics", tags=["board"])(self.read_metrics)
        app.get("/api/runs/{name:path}/predictions", tags=["board"])(self.read_predictions)
        app.get("/api/runs/{name:path}", tags=["board"])(self.describe)

    def list_runs(
        self,
        query: str = "",
        sort: str = "updated",
        descending: bool = True,
        limit: Annotated[int, Query(ge=1, le=_MOST_ROWS)] = 100,
        offset: Annotated[int, Query(ge=0)] = 0,
    ) -> Response:
        """Runs whose name, state or kind has every word of `query`; how many there are is in X-Total."""
        if sort not in SORTED_BY:
            raise Refusal(422, f"runs are not sorted by '{sort[:80]}'; choose one of {', '.join(SORTED_BY)}")
        words = query.lower().split()
        rows = [run.describe() for run in self.index.list_runs()]
        rows = [
            row for row in rows if all(word in f"{row['name']} {row['state']} {row['kind']}".lower() for word in words)
        ]
        rows.sort(key=lambda row: row["name"])
        known = [row for row in rows if row[sort] is not None]
        known.sort(key=lambda row: row[sort], reverse=descending)
        ordered = [*known, *(row for row in rows if row[sort] is None)]
        return _answer(ordered[offset : offset + limit], {"X-Total": str(len(rows))})

    def _find(self, name: str) -> FoundRun:
        run = self.index.find(name)
        if run is None:
            raise Refusal(
                404, f"there is no run '{name:.80}' in the folder of this board; /api/runs lists what there is"
            )
        return run

    def compare(self, names: Annotated[list[str], Query()]) -> Response:
        """The settings in which runs differ: by key, the value of each; runs are given by commas or one by one."""
        asked = [part for name in names for part in ([name] if self.index.find(name) else name.split(","))]
        if len(asked) > _MOST_COMPARED:
            raise Refusal(422, f"{len(asked)} runs are asked for; at most {_MOST_COMPARED} are compared")
        differing, num_same = find_differences([self.index.read_settings(self._find(name)) for name in asked])
        return _answer({"names": asked, "settings": differing, "num_same": num_same})

    def describe(self, name: str) -> Response:
        """Settings, last figures, final.json and what the folder tells of the run's course."""
        run = self._find(name)
        return _answer(
            {
                **run.describe(),
                "settings": flatten(self.index.read_settings(run)),
                "final": run.final,
                "last": run.last,
                "events": _list_events(run),
                "has_predictions": run.folder.predictions_file.name in run.files,
            }
        )

    def read_metrics(
        self,
        name: str,
        keys: str = "",
        after_step: float | None = None,
        points: Annotated[int, Query(ge=10, le=_MOST_POINTS)] = 1_000,
    ) -> Response:
        """Thinned curves, lowest and highest values kept; without `keys` all of them.

        X-Read-Share is under 1 while a large file is being read: the curves are those of samples until then. When
        X-Generation rises, the file was replaced, and what was read of it before no longer stands.
        """
        run = self._find(name)
        tail = self._read(run.folder.metrics_file)
        curves = tail.shown
        asked = keys.split(",") if keys else sorted(curves.by_key)
        found = {
            key: curves.by_key[key].list_points(points, after_step).tolist() for key in asked if key in curves.by_key
        }
        headers = {
            "X-Read-Share": f"{tail.read_share:.4f}",
            "X-Generation": str(tail.generation),
            "X-Lines": str(tail.curves.num_lines),
            "X-Damaged-Lines": str(tail.curves.num_damaged),
            "X-Keys": json.dumps(sorted(curves.by_key)),
        }
        return _answer(found, headers)

    def read_predictions(self, name: str) -> Response:
        """Held-out texts with what the model made of them, oldest first; none where the run keeps none."""
        run = self._find(name)
        return _answer(read_predictions(run.folder))

    def _read(self, file: Path) -> MetricsTail:
        with self._lock:
            tail = self._tails.pop(file, None) or MetricsTail(file)
            self._tails[file] = tail
            while len(self._tails) > _MOST_TAILS:
                self._tails.popitem(last=False)
            is_being_read = file in self._reading
        if not is_being_read and not tail.read(_FIRST_READ_S):
            self._read_on(tail)
        return tail

    def _read_on(self, tail: MetricsTail) -> None:
        """In the thread that reads what is long, one file after another."""
        with self._lock:
            if tail.path in self._reading:
                return
            self._reading.add(tail.path)

        def read() -> None:
            try:
                tail.read()
            finally:
                self._reading.discard(tail.path)

        self._reader.submit(read)


def _list_events(run: FoundRun) -> list[dict[str, Any]]:
    """What the files of a run say happened, by their times."""
    events = [{"time": run.started, "text": "begun"}]
    for checkpoint in list_checkpoints(run.folder.checkpoints):
        try:
            events.append({"time": checkpoint.stat().st_mtime, "text": f"checkpoint {checkpoint.name}"})
        except OSError:  # an older one, removed meanwhile
            continue
    if run.final is not None:
        try:
            events.append({"time": run.folder.final_file.stat().st_mtime, "text": run.state})
        except OSError:
            return events
    return sorted(events, key=lambda event: event["time"])


def _answer(content: Any, headers: dict[str, str] | None = None) -> Response:
    """What is not finite becomes null; a value of YAML that JSON has no word for is written as text."""
    body = orjson.dumps(content, default=str, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
    return Response(body, headers=headers, media_type="application/json")
