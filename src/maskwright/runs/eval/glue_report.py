"""The figures of GLUE: means over seeds with their spread, and the paired difference of two models."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from maskwright.evaluation.agreement import Agreement
from maskwright.evaluation.figures import INTERVAL, PAIRED_TEST, Difference
from maskwright.evaluation.statistics import CONFIDENCE, Floats, compute_seed_interval

SEED_INTERVAL = f"{CONFIDENCE:.0%}, Student's t over seeds"
AVERAGE = "average"
_MAIN_SET = "dev"

TaskScores = Mapping[str, Sequence[Agreement]]
"""The measures of each held-out set."""


@dataclass(frozen=True)
class SeedFigure:
    task: str
    measure: str
    n: int
    """Held-out examples, or tasks of an average."""
    mean: float
    deviation: float
    """Over seeds; NaN with one."""
    low: float
    high: float
    seeds: list[float]

    @classmethod
    def of_seeds(cls, task: str, measure: str, n: int, values: Floats) -> SeedFigure:
        interval = compute_seed_interval(values)
        deviation = float(values.std(ddof=1)) if len(values) > 1 else math.nan
        return cls(task, measure, n, float(values.mean()), deviation, interval.low, interval.high, values.tolist())


@dataclass(frozen=True)
class GlueReport:
    models: tuple[str, ...]
    figures: tuple[list[SeedFigure], ...]
    """Of each model; the average of all tasks comes last."""
    differences: list[Difference] | None
    """The first model's less the second's, over the same examples."""

    def to_json(self) -> dict[str, Any]:
        content: dict[str, Any] = {
            "suite": "glue",
            "model": self.models[0],
            "interval": SEED_INTERVAL,
            "figures": [_blank(figure) for figure in self.figures[0]],
        }
        if self.differences is not None:
            content["against"] = {
                "model": self.models[1],
                "figures": [_blank(figure) for figure in self.figures[1]],
                "test": f"{PAIRED_TEST}, over examples",
                "interval": INTERVAL,
                "differences": [_blank(difference) for difference in self.differences],
            }
        return content


def build_glue_report(models: Sequence[str], scores: Sequence[Mapping[str, TaskScores]]) -> GlueReport:
    """`scores` are those of each model by task."""
    figures = tuple(_build_figures(one) for one in scores)
    differences = None
    if len(scores) == 2:
        differences = [
            own.compare(other, "task", _name_set(task, name))
            for task, sets in scores[0].items()
            for name, measures in sets.items()
            for own, other in zip(measures, scores[1][task][name], strict=True)
        ]
    return GlueReport(tuple(models), figures, differences)


def _build_figures(scores: Mapping[str, TaskScores]) -> list[SeedFigure]:
    figures, of_tasks = [], []
    for task, sets in scores.items():
        values = []
        for name, measures in sets.items():
            for measure in measures:
                values.append(measure.compute_runs())
                n = len(measure.labels)
                figures.append(SeedFigure.of_seeds(_name_set(task, name), measure.name, n, values[-1]))
        of_tasks.append(np.mean(values, axis=0))
    average = SeedFigure.of_seeds(AVERAGE, "of tasks", len(of_tasks), np.mean(of_tasks, axis=0))
    return [*figures, average]


def format_glue(report: GlueReport) -> str:
    rows = list(_list_rows(report))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = [
        "  ".join(cell.ljust(width) if place < 2 else cell.rjust(width) for place, (cell, width) in enumerate(pairs))
        for pairs in (zip(row, widths, strict=True) for row in rows)
    ]
    head = [f"glue: {len(report.figures[0][0].seeds)} seeds; intervals of means: {SEED_INTERVAL}"]
    if report.differences is not None:
        head.append(f"A is {report.models[0]}, B is {report.models[1]}; differences: {INTERVAL}; p: {PAIRED_TEST}")
    return "\n".join([*head, "", *(line.rstrip() for line in table)])


def _list_rows(report: GlueReport) -> Iterator[list[str]]:
    if report.differences is None:
        yield ["task", "measure", "n", "mean", "deviation", "interval"]
        for figure in report.figures[0]:
            yield [figure.task, figure.measure, f"{figure.n:,}", *_format_figure(figure)]
        return
    differences = {(line.group, line.measure): line for line in report.differences}
    columns = ("mean", "deviation", "interval")
    yield ["task", "measure", "n", *(f"{model} {name}" for model in "AB" for name in columns), "A - B", "interval", "p"]
    for own, other in zip(*report.figures, strict=True):
        line = differences.get((own.task, own.measure))
        compared = [_format(own.mean - other.mean), "-", "-"]
        if line is not None:
            compared = [_format(line.difference), _format_range(line.low, line.high), _format(line.p_value)]
        yield [own.task, own.measure, f"{own.n:,}", *_format_figure(own), *_format_figure(other), *compared]


def _format_figure(figure: SeedFigure) -> list[str]:
    return [_format(figure.mean), _format(figure.deviation), _format_range(figure.low, figure.high)]


def _format_range(low: float, high: float) -> str:
    return "-" if math.isnan(low) else f"{_format(low)} to {_format(high)}"


def _format(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4f}"


def _name_set(task: str, name: str) -> str:
    return task if name == _MAIN_SET else f"{task} {name}"


def _blank(line: SeedFigure | Difference) -> dict[str, Any]:
    """With null where there is no number."""
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value for name, value in asdict(line).items()
    }
