"""Curves of a run as SVG, drawn as the board draws them: the same style sheet, thinned for the eye."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from importlib.resources import files

import numpy as np

from maskwright.runs.thinning import Floats, thin_points

_WIDTH, _HEIGHT = 520, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 10, 8, 26
_MOST_POINTS, _MOST_DOTS = 2 * (_WIDTH - _LEFT - _RIGHT), 60
_ROOM = 0.05
"""Above and below the curves, as a share of their height."""
_STEPS = (1, 2, 2.5, 5, 10)
Panels = Sequence[tuple[str, Mapping[str, str]]]


def read_look() -> str:
    """The style sheet of everything that is shown in a browser."""
    return files("maskwright").joinpath("serving", "page", "look.css").read_text(encoding="utf-8")


def draw_curves(metrics: Sequence[Mapping[str, float]], panels: Panels, baselines: Mapping[str, float]) -> str:
    """A figure for each panel of which something was logged; keys that begin with val_ are points, the others lines."""
    figures = []
    for title, names in panels:
        series = [(name, label, _collect(metrics, name)) for name, label in names.items()]
        series = [(name, label, points) for name, label, points in series if len(points)]
        if series:
            figures.append(_draw_figure(title, series, baselines.get(title)))
    return f'<div class="charts">{"".join(figures)}</div>' if figures else ""


def _collect(metrics: Sequence[Mapping[str, float]], name: str) -> Floats:
    """(P, 2)"""
    pairs = [(line["step"], line[name]) for line in metrics if line.get(name) is not None]
    points = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return points[np.isfinite(points).all(axis=1)]


def _draw_figure(title: str, series: Sequence[tuple[str, str, Floats]], baseline: float | None) -> str:
    joined = np.concatenate([points for _, _, points in series])
    heights = joined[:, 1] if baseline is None else np.append(joined[:, 1], baseline)
    scale_x, (left, right) = _scale(joined[:, 0], 0.0, _LEFT, _WIDTH - _RIGHT)
    scale_y, (low, high) = _scale(heights, _ROOM, _HEIGHT - _BOTTOM, _TOP)
    parts = [_draw_tick(_LEFT - 7, scale_y(tick) + 3.5, "end", tick) for tick in _choose_ticks(low, high)]
    parts += [_draw_line("grid", scale_y(tick)) for tick in _choose_ticks(low, high)]
    parts += [_draw_tick(scale_x(tick), _HEIGHT - 8, "middle", tick) for tick in _choose_ticks(left, right)]
    if baseline is not None:
        parts.append(_draw_line("baseline", scale_y(baseline)))
    keys = []
    for hue, (name, label, points) in enumerate(series):
        is_dotted = name.startswith("val_") or len(points) == 1
        shown = thin_points(points, _MOST_DOTS if is_dotted else _MOST_POINTS)
        places = [(scale_x(x), scale_y(y)) for x, y in shown.tolist()]
        if is_dotted:
            parts += [f'<circle class="dot fill-{hue}" cx="{x:.1f}" cy="{y:.1f}" r="2.7"/>' for x, y in places]
        else:
            path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
            parts.append(f'<path class="curve stroke-{hue}" d="M{path}"/>')
        keys.append(f'<li><span class="key ink-{hue}"></span>{html.escape(label)}</li>')
    if baseline is not None:
        keys.append("<li>dashed: guessing by token frequency</li>")
    last = html.escape(", ".join(f"{label} {_write(points[-1, 1])}" for _, label, points in series))
    name = html.escape(title)
    legend = f'<ul class="legend">{"".join(keys)}</ul>' if len(keys) > 1 else ""
    return (
        f'<figure class="chart"><figcaption>{name} <span class="value">{last}</span></figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{name} against the step: at the end {last}">'
        f"{''.join(parts)}</svg>{legend}</figure>"
    )


def _scale(values: Floats, room: float, start: float, stop: float) -> tuple[_Scale, tuple[float, float]]:
    low, high = float(values.min()), float(values.max())
    spread = high - low or abs(high) or 1.0
    bottom = low - room * spread
    bottom = 0.0 if low >= 0 > bottom else bottom
    top = high + room * spread if high > low or room else low + spread
    return _Scale(bottom, top, start, stop), (bottom, top)


class _Scale:
    def __init__(self, low: float, high: float, start: float, stop: float) -> None:
        self._low, self._start = low, start
        self._factor = (stop - start) / (high - low)

    def __call__(self, value: float) -> float:
        return self._start + (value - self._low) * self._factor


def _choose_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers, about so many."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(one * power for one in _STEPS if one * power >= rough * (1 - 1e-9))
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step + 1e-9) + 1)]


def _draw_line(kind: str, y: float) -> str:
    return f'<line class="{kind}" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _draw_tick(x: float, y: float, anchor: str, value: float) -> str:
    return f'<text class="tick" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{_write(value)}</text>'


def _write(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
