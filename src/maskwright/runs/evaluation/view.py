"""A report as lines of text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from maskwright.evaluation.figures import INTERVAL, PAIRED_TEST, Difference, Figure
from maskwright.runs.evaluation.report import Report

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
