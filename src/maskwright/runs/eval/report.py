"""What an evaluation hands back, as data and as lines: figures of one model, or of two and their difference."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.errors import InputError
from maskwright.evaluation.figures import (
    INTERVAL,
    PAIRED_TEST,
    Difference,
    Figure,
    Groups,
    Measure,
    compute_differences,
    compute_figures,
    to_json,
)

ALL = ("all", "all")


@dataclass(frozen=True)
class ItemScores:
    """What one model gave each item of a suite."""

    measures: Sequence[Measure]
    unscored: Sequence[str | None]
    """Why an item has no score; None where it has one."""


@dataclass(frozen=True)
class Report:
    suite: str
    models: tuple[str, ...]
    """One, or two that are compared."""
    score: str
    """What the models were asked for."""
    items: str
    """What an item is, in the plural."""
    figures: tuple[list[Figure], ...]
    """Of each model."""
    differences: list[Difference] | None
    """The first model's less the second's."""
    left_out: Mapping[str, int]
    """How many items were not scored, by reason; of two models, those that either did not score."""
    totals: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        figures = [[to_json(figure) for figure in figures] for figures in self.figures]
        content: dict[str, Any] = {
            **self.totals,
            "suite": self.suite,
            "model": self.models[0],
            "score": self.score,
            "interval": INTERVAL,
            "left_out": dict(self.left_out),
            "figures": figures[0],
        }
        if self.differences is not None:
            content["against"] = {
                "model": self.models[1],
                "figures": figures[1],
                "test": PAIRED_TEST,
                "differences": [to_json(difference) for difference in self.differences],
            }
        return content


def build_report(
    suite: str,
    models: Sequence[str],
    scores: Sequence[ItemScores],
    *,
    score: str,
    items: str,
    groups: Groups,
    totals: Mapping[str, float] | None = None,
) -> Report:
    """Figures over the items that every model scored, so that two models answer the same questions."""
    reasons = [
        next((reason for reason in item if reason), None) for item in zip(*(s.unscored for s in scores), strict=True)
    ]
    is_scored = np.asarray([reason is None for reason in reasons], dtype=bool)
    left_out = {reason: reasons.count(reason) for reason in dict.fromkeys(reasons) if reason is not None}
    if not is_scored.any():
        counts = ", ".join(f"{reason}: {number}" for reason, number in left_out.items())
        raise InputError(f"none of the {len(reasons)} {items} can be scored ({counts}); give others or another model")
    chosen = {name: members & is_scored for name, members in {ALL: is_scored, **groups}.items()}
    present = {name: members for name, members in chosen.items() if members.any()}
    differences = None
    if len(scores) == 2:
        differences = compute_differences(scores[0].measures, scores[1].measures, present)
    figures = tuple(compute_figures(one.measures, present) for one in scores)
    return Report(suite, tuple(models), score, items, figures, differences, left_out, totals or {})


def group_by(kind: str, names: Sequence[str]) -> dict[tuple[str, str], NDArray[np.bool_]]:
    """The items of each name, sorted."""
    given = np.asarray(names, dtype=object)
    return {(kind, name): given == name for name in sorted(set(names))}


_HIDDEN_KINDS = {"field", "paradigm"}
"""Groups that only the JSON holds: nobody reads a table of 67 paradigms."""


def format_report(report: Report) -> str:
    """The table of one model, or of both beside their differences, under what was asked and counted."""
    rows = list(_list_rows(report))
    return "\n".join([*_head_lines(report), "", *_align(rows)])


def _head_lines(report: Report) -> Iterator[str]:
    yield f"{report.suite}: {report.score}; intervals: {INTERVAL}"
    totals = [f"{name} {_format(value)}" for name, value in report.totals.items()]
    left_out = [f"{number:,} left out ({reason})" for reason, number in report.left_out.items()]
    yield ", ".join([*totals, *left_out])
    if report.differences is not None:
        yield f"A is {report.models[0]}, B is {report.models[1]}; p: {PAIRED_TEST}"


def _list_rows(report: Report) -> Iterator[list[str]]:
    figures = [[figure for figure in one if figure.kind not in _HIDDEN_KINDS] for one in report.figures]
    if report.differences is None:
        yield ["group", "measure", "n", "mean", "interval"]
        for figure in figures[0]:
            yield [*_name(figure), _format(figure.mean), _format_interval(figure)]
        return
    differences = {(line.kind, line.group, line.measure): line for line in report.differences}
    yield ["group", "measure", "n", "A", "interval", "B", "interval", "A - B", "interval", "p"]
    for own, other in zip(*figures, strict=True):
        means = [text for one in (own, other) for text in (_format(one.mean), _format_interval(one))]
        yield [*_name(own), *means, *_format_difference(differences.get((own.kind, own.group, own.measure)))]


def _name(figure: Figure) -> list[str]:
    return [figure.group, figure.measure, f"{figure.n:,}"]


def _format_difference(difference: Difference | None) -> list[str]:
    if difference is None:
        return ["", "", ""]
    p_value = "-" if math.isnan(difference.p_value) else f"{difference.p_value:.4f}"
    return [_format(difference.difference), _format_interval(difference), p_value]


def _format_interval(line: Figure | Difference) -> str:
    return "-" if math.isnan(line.low) else f"{_format(line.low)} to {_format(line.high)}"


def _format(value: float) -> str:
    return f"{value:,.4f}" if isinstance(value, float) else f"{value:,}"


def _align(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Names to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            text.ljust(width) if place < 2 else text.rjust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
