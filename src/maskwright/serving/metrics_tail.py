"""Follows a metrics.jsonl that grows, is cut short or is replaced: each byte is read once, in bounded memory."""

from __future__ import annotations

import math
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from maskwright.pictures.thinning import Floats, ThinnedCurve
from maskwright.runs.folder import parse_metrics_line
from maskwright.storage import open_regular

_CHUNK_BYTES = 2**22
"""Read at a time; a line that is longer is damage."""
_MOST_KEYS = 200
_FINGERPRINT_BYTES = 256
_SAMPLED_FROM_BYTES = 2**26
"""From so many unread bytes on, a first look takes samples from all over the file."""
_NUM_SAMPLES, _SAMPLE_BYTES = 256, 2**15
_LAST_BYTES, _NUM_LAST_LINES = 2**16, 6
_HELD_OUT_KEY = b'"val_loss"'
_POINT, _MARKS = "step", {"step", "epoch_end"}
"""What says where a figure belongs, and is none."""


@dataclass
class Curves:
    """What a part of a metrics file says, by key."""

    by_key: dict[str, ThinnedCurve] = field(default_factory=dict)
    num_lines: int = 0
    num_damaged: int = 0

    def add_lines(self, chunk: bytes) -> None:
        """Whole lines; pyarrow reads them several times as fast as Python, which reads those with a damaged one."""
        columns = _parse_quickly(chunk)
        if columns is None:
            columns = self._parse_each(chunk)
        else:
            self.num_lines += chunk.count(b"\n")
        for key, (steps, values) in columns.items():
            is_finite = np.isfinite(values)
            if key not in _MARKS and is_finite.any() and (key in self.by_key or len(self.by_key) < _MOST_KEYS):
                self.by_key.setdefault(key, ThinnedCurve()).add(steps[is_finite], values[is_finite])

    def _parse_each(self, chunk: bytes) -> dict[str, tuple[Floats, Floats]]:
        lines = chunk.decode("utf-8", errors="replace").removesuffix("\n").split("\n")
        parsed = [line for line in map(parse_metrics_line, lines) if line is not None]
        self.num_lines += len(lines)
        self.num_damaged += len(lines) - len(parsed)
        points: dict[str, list[tuple[float, float]]] = {}
        for line in parsed:
            for key, value in line.items():
                if value is not None:
                    points.setdefault(key, []).append((line[_POINT], value))
        arrays = {key: np.array(pairs, dtype=np.float64) for key, pairs in points.items()}
        return {key: (array[:, 0], array[:, 1]) for key, array in arrays.items()}


class MetricsTail:
    """`read` goes on where it ended; a file that was cut or replaced is read from its beginning again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.curves = Curves()
        self.generation = 0
        """Rises whenever what was read before no longer stands."""
        self.size = self._offset = 0
        self._file_id: tuple[int, int] | None = None
        self._read_last = b""
        self._is_in_long_line = False
        self._sample: Curves | None = None
        self._lock = threading.Lock()

    @property
    def read_share(self) -> float:
        """Of the file; a line that is not whole yet does not count as unread."""
        return 1.0 if self._sample is None or not self.size else self._offset / self.size

    @property
    def shown(self) -> Curves:
        """All that was read, or while a large file is being read a sample of it."""
        return self.curves if self._sample is None else self._sample

    def read(self, budget_s: float = float("inf")) -> bool:
        """Whether the end of the file was reached."""
        end_s = time.monotonic() + budget_s
        with self._lock:
            try:
                file = open_regular(self.path)
            except OSError:
                self._restart()
                return True
            with file:
                self._check_same(file)
                if self._sample is None and self.size - self._offset > max(_SAMPLED_FROM_BYTES, self.size // 2):
                    self._sample = _read_sample(file, self.size)
                while self._read_chunk(file):
                    if time.monotonic() > end_s:
                        return False
            self._sample = None
            return True

    def _check_same(self, file: BinaryIO) -> None:
        facts = os.fstat(file.fileno())
        self.size, file_id = facts.st_size, (facts.st_dev, facts.st_ino)
        file.seek(max(0, self._offset - len(self._read_last)))
        is_same = file_id == self._file_id and file.read(len(self._read_last)) == self._read_last
        if not is_same or self.size < self._offset:
            self._restart()
            self._file_id, self.size = file_id, facts.st_size

    def _restart(self) -> None:
        self.generation += self._offset > 0
        self.curves, self._sample = Curves(), None
        self.size = self._offset = 0
        self._file_id, self._read_last, self._is_in_long_line = None, b"", False

    def _read_chunk(self, file: BinaryIO) -> bool:
        """False at the end of what is whole."""
        file.seek(self._offset)
        chunk = file.read(_CHUNK_BYTES)
        end = chunk.rfind(b"\n") + 1
        if not end:
            if len(chunk) < _CHUNK_BYTES:
                return False
            self.curves.num_damaged += not self._is_in_long_line
            self._is_in_long_line, end = True, len(chunk)
        elif self._is_in_long_line:
            begin = chunk.find(b"\n") + 1
            self._is_in_long_line = False
            self._add(chunk[begin:end])
        else:
            self._add(chunk[:end])
        self._offset += end
        self._read_last = (self._read_last + chunk[:end])[-_FINGERPRINT_BYTES:]
        return True

    def _add(self, lines: bytes) -> None:
        if lines:
            self.curves.add_lines(lines)


def read_last_values(path: Path) -> dict[str, float]:
    """The newest value of every key in the last lines of a metrics file; nothing where it cannot be read.

    Evaluations are rarer than log lines, so the newest one is looked for a little farther back.
    """
    try:
        with open_regular(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LAST_BYTES))
            lines = file.read(_LAST_BYTES).split(b"\n")[:-1]
    except OSError:
        return {}
    if size > _LAST_BYTES:
        lines = lines[1:]
    shown = lines[-_NUM_LAST_LINES:]
    earlier = reversed(lines[: len(lines) - len(shown)])
    evaluation = next((line for line in earlier if _HELD_OUT_KEY in line), None)
    values: dict[str, float] = {}
    for line in shown if evaluation is None else [evaluation, *shown]:
        parsed = parse_metrics_line(line.decode("utf-8", errors="replace")) or {}
        values |= {key: value for key, value in parsed.items() if value is not None and math.isfinite(value)}
    return values


def _read_sample(file: BinaryIO, size: int) -> Curves:
    """Lines from places all over a file, as a first look."""
    sample = Curves()
    for start in np.linspace(0, size - _SAMPLE_BYTES, _NUM_SAMPLES).astype(int).tolist():
        file.seek(start)
        piece = file.read(_SAMPLE_BYTES)
        begin, end = (piece.find(b"\n") + 1 if start else 0), piece.rfind(b"\n") + 1
        if begin < end:
            sample.add_lines(piece[begin:end])
    return sample


def _parse_quickly(chunk: bytes) -> dict[str, tuple[Floats, Floats]] | None:
    """Steps and values by key; None where a line is not as it should be."""
    options = pyarrow.json.ReadOptions(use_threads=False, block_size=len(chunk) + 1)
    try:
        table = pyarrow.json.read_json(pa.BufferReader(chunk), read_options=options)
    except pa.ArrowInvalid:
        return None
    if (
        not all(_is_number(one.type) for one in table.schema)
        or table.num_rows != chunk.count(b"\n")
        or _POINT not in table.column_names
    ):
        return None
    steps = table[_POINT]
    if not pa.types.is_int64(steps.type) or steps.null_count or pc.min(steps).as_py() < 0:
        return None
    numbers = steps.to_numpy().astype(np.float64)
    return {key: _take_known(numbers, table[key]) for key in table.column_names}


def _is_number(kind: Any) -> bool:
    """Of figures that are all unknown in these lines the type is null."""
    return any(
        test(kind) for test in (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null)
    )


def _take_known(steps: Floats, column: Any) -> tuple[Floats, Floats]:
    is_known = column.is_valid().to_numpy(zero_copy_only=False).astype(bool)
    values = column.cast(pa.float64(), safe=False).to_numpy()
    return steps[is_known], values[is_known]
