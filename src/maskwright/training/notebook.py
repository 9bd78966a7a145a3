"""Live progress in a notebook: one output of the cell that changes, with a bar, curves and what was measured."""

from __future__ import annotations

import html
import time
from collections.abc import Mapping
from importlib import import_module

from maskwright.pictures.charts import Panels, draw_curves
from maskwright.pictures.look import frame_cell

_INTERVAL_S = 0.5
_MOST_LINES = 12
_PANELS: Panels = (
    ("Loss", {"loss": "training", "val_loss": "held-out"}),
    (
        "Accuracy",
        {
            "mlm_accuracy": "training",
            "val_mlm_accuracy": "held-out",
            "accuracy": "training",
            "val_accuracy": "held-out",
        },
    ),
)


class NotebookView:
    def __init__(self) -> None:
        self._shows = import_module("IPython.display")  # there wherever a console finds itself in a notebook
        self._lines: list[str] = []
        self._metrics: list[dict[str, float]] = []
        self._status, self._progress = "starting", 0.0
        self._shown_s = time.monotonic()
        self._handle = self._shows.display(self._shows.HTML(self._build()), display_id=True)

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Points of the curves."""
        self._metrics.append({"step": step, **metrics})

    def add_line(self, line: str) -> None:
        """What stays, such as the figures of an epoch."""
        self._lines.append(line)
        self.show(self._progress, self._status)

    def show(self, progress: float, status: str, is_last: bool = False) -> None:
        self._progress, self._status = progress, status
        now_s = time.monotonic()
        if is_last or now_s - self._shown_s >= _INTERVAL_S:
            self._shown_s = now_s
            self._handle.update(self._shows.HTML(self._build()))

    def close(self) -> None:
        self.show(self._progress, self._status, is_last=True)

    def _build(self) -> str:
        left_out = len(self._lines) - _MOST_LINES
        lines = [f"({left_out} earlier lines)"] * (left_out > 0) + self._lines[-_MOST_LINES:]
        return frame_cell(
            f'<div class="track"><div style="width: {self._progress:.1%}"></div></div>'
            f"<div>{html.escape(self._status)}</div>{draw_curves(self._metrics, _PANELS, {})}"
            f"{''.join(f'<div>{html.escape(line)}</div>' for line in lines)}"
        )
