"""The table of a sweep, and its page with curves."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from maskwright.pictures.charts import draw_runs
from maskwright.runs.report import PANELS, build_page

_MOST_CURVES = 8
"""As many as there are colours."""


class _Measured(Protocol):
    @property
    def loss(self) -> float: ...
    @property
    def step(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def seconds(self) -> float: ...


class _Trial(Protocol):
    @property
    def settings(self) -> Mapping[str, str]: ...
    @property
    def rounds(self) -> Sequence[_Measured]: ...
    @property
    def trouble(self) -> str | None: ...


@dataclass(frozen=True)
class Row:
    """A trial in the table."""

    name: str
    settings: Mapping[str, str]
    losses: tuple[float, ...]
    """Of each round that it was in."""
    step: int
    tokens: int
    seconds: float
    trouble: str | None

    def list_cells(self) -> dict[str, str]:
        losses = " -> ".join(f"{loss:.4f}" for loss in self.losses)
        shown = losses if self.trouble is None else f"{losses} failed".strip()
        counts = {"steps": f"{self.step:,}", "tokens": f"{self.tokens:,}", "seconds": f"{self.seconds:,.3g}"}
        return {"trial": self.name, **_shorten(self.settings), "held-out loss": shown, **counts}


def _shorten(settings: Mapping[str, str]) -> dict[str, str]:
    """Without their sections, if they differ without."""
    short = {key.rpartition(".")[2]: value for key, value in settings.items()}
    return short if len(short) == len(settings) else dict(settings)


def list_rows(trials: Mapping[str, _Trial]) -> list[Row]:
    """From the best to the worst: those trained furthest first, failed ones last."""
    rows = []
    for name, trial in trials.items():
        last = trial.rounds[-1] if trial.rounds else None
        losses = tuple(one.loss for one in trial.rounds)
        counts = (0, 0, 0.0) if last is None else (last.step, last.tokens, last.seconds)
        rows.append(Row(name, trial.settings, losses, *counts, trial.trouble))
    return sorted(rows, key=lambda row: (row.trouble is not None, -len(row.losses), row.losses[-1:]))


def build_sweep_page(title: str, rows: Sequence[Row], metrics: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """The table of all trials, and the curves of the best."""
    header = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0].list_cells())
    lines = [
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row.list_cells().values()) + "</tr>"
        for row in rows
    ]
    shown = {row.name: metrics[row.name] for row in rows[:_MOST_CURVES]}
    return build_page(
        title,
        "<p>From the best to the worst; a trial has a loss for each round that it was in.</p>"
        f'<div class="wide"><table><tr>{header}</tr>{"".join(lines)}</table></div>'
        f"<h2>Curves of the best</h2>{draw_runs(shown, PANELS[:1])}",
    )
