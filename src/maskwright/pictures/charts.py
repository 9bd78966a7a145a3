"""Charts of the reports as SVG, which needs no library: curves, bars and a map of words, in the look of the board."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from maskwright.pictures.thinning import Floats, thin_points

_WIDTH, _HEIGHT = 520, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 10, 8, 26
_MOST_POINTS, _MOST_DOTS = 2 * (_WIDTH - _LEFT - _RIGHT), 60
_NAMES, _BAR = 80, 12
"""Of rows: the room for their names, and the height of a bar."""
_ROOM = 0.05
"""Above and below the curves, as a share of their height."""
_STEPS = (1, 2, 2.5, 5, 10)
_NUM_HUES = 8
"""Of look.css."""
Panels = Sequence[tuple[str, Mapping[str, str]]]
"""Titles, and the logged figures that a chart shows, with their labels."""


@dataclass(frozen=True)
class Series:
    label: str
    points: Floats
    """(P, 2)"""
    hue: int
    is_dotted: bool


def draw_curves(metrics: Sequence[Mapping[str, float]], panels: Panels, baselines: Mapping[str, float]) -> str:
    """A figure for each panel of which something was logged.

    Keys that begin with val_ are points on a dashed line, the others lines.
    """
    figures = []
    for title, names in panels:
        known = [(name, points) for name in names if len(points := _collect(metrics, name))]
        series = [Series(names[name], points, hue, name.startswith("val_")) for hue, (name, points) in enumerate(known)]
        if series:
            figures.append(_draw_figure(title, series, baselines.get(title)))
    return frame(figures)


def draw_runs(runs: Mapping[str, Sequence[Mapping[str, float]]], panels: Panels) -> str:
    """The curves of several runs over each other, each run in its colour; what is held out has points and dashes."""
    figures = []
    for title, names in panels:
        series = [
            Series(f"{run}, {label}" if len(set(names.values())) > 1 else run, points, hue, name.startswith("val_"))
            for hue, (run, metrics) in enumerate(runs.items())
            for name, label in names.items()
            if len(points := _collect(metrics, name))
        ]
        if series:
            figures.append(_draw_figure(title, series, None, shows_last=False))
    return frame(figures)


def frame(figures: Sequence[str]) -> str:
    """Charts side by side where there is room."""
    return f'<div class="charts">{"".join(figures)}</div>' if figures else ""


def draw_bars(title: str, groups: Sequence[str], series: Mapping[str, Sequence[float | None]]) -> str:
    """A figure of shares in [0, 1]: for each group a bar of each series, or none where its value is None."""
    scale_y = _Scale(0.0, 1.0, _HEIGHT - _BOTTOM, _TOP)
    slot = (_WIDTH - _LEFT - _RIGHT) / len(groups)
    width = 0.7 * slot / len(series)
    parts = [_draw_line("grid", scale_y(tick)) for tick in (0.0, 0.25, 0.5, 0.75, 1.0)]
    parts += [_draw_tick(_LEFT - 7, scale_y(tick) + 3.5, "end", f"{tick:.0%}") for tick in (0.0, 0.25, 0.5, 0.75, 1.0)]
    for place, group in enumerate(groups):
        centre = _LEFT + (place + 0.5) * slot
        parts.append(_draw_tick(centre, _HEIGHT - 8, "middle", group))
        for hue, values in enumerate(series.values()):
            value = values[place]
            if value is None:
                continue
            x, y = centre + (hue - len(series) / 2) * width, scale_y(value)
            parts.append(
                f'<rect class="fill-{hue % _NUM_HUES}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}"'
                f' height="{scale_y(0.0) - y:.1f}"/>'
            )
            parts.append(_draw_tick(x + width / 2, y - 4, "middle", f"{value:.0%}"))
    keys = [_draw_key(label, hue) for hue, label in enumerate(series)] if len(series) > 1 else []
    return _wrap(title, "", "".join(parts), keys, f"{title}: a bar for each of {', '.join(groups)}")


def draw_rows(title: str, groups: Sequence[str], series: Mapping[str, Sequence[float | None]]) -> str:
    """What `draw_bars` draws, for many groups: bars to the right, a line for each group."""
    pitch = _BAR * len(series) + 8
    height = pitch * len(groups) + _BOTTOM
    scale_x = _Scale(0.0, 1.0, _NAMES, _WIDTH - 3 * _RIGHT)
    ticks = [(tick, scale_x(tick)) for tick in (0.0, 0.25, 0.5, 0.75, 1.0)]
    parts = [f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - _BOTTOM}"/>' for _, x in ticks]
    parts += [_draw_tick(x, height - 8, "middle", f"{tick:.0%}") for tick, x in ticks]
    for place, group in enumerate(groups):
        top = place * pitch + 4
        parts.append(_draw_tick(_NAMES - 7, top + _BAR * len(series) / 2 + 4, "end", group))
        for hue, values in enumerate(series.values()):
            value, y = values[place], top + hue * _BAR
            if value is not None:
                length = scale_x(value) - _NAMES
                colour = f"fill-{hue % _NUM_HUES}"
                parts.append(f'<rect class="{colour}" x="{_NAMES}" y="{y}" width="{length:.1f}" height="{_BAR}"/>')
                parts.append(_draw_tick(_NAMES + length + 4, y + _BAR - 2, "start", f"{value:.0%}"))
    keys = [_draw_key(label, hue) for hue, label in enumerate(series)] if len(series) > 1 else []
    return _wrap(title, "", "".join(parts), keys, f"{title}: a bar for each of {', '.join(groups)}", (_WIDTH, height))


def draw_word_map(title: str, words: Sequence[tuple[str, float, float]]) -> str:
    """Words at their places, the first ones first: a word that would cover another is a dot with its name on hover."""
    width, height = 2 * _WIDTH, 2 * _HEIGHT
    places = np.array([(x, y) for _, x, y in words])
    scale_x, _ = _scale(places[:, 0], _ROOM, 30, width - 30)
    scale_y, _ = _scale(places[:, 1], _ROOM, height - 14, 14)
    taken: list[tuple[float, float, float]] = []
    parts = []
    for word, raw_x, raw_y in words:
        x, y, half = scale_x(raw_x), scale_y(raw_y), 3.6 * len(word) + 2
        name = html.escape(word)
        is_free = all(abs(x - other) > half + extent or abs(y - line) > 13 for other, line, extent in taken)
        if is_free:
            taken.append((x, y, half))
            parts.append(f'<text class="word" x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle">{name}</text>')
        else:
            parts.append(f'<circle class="dot fill-0" cx="{x:.1f}" cy="{y:.1f}" r="2.4"><title>{name}</title></circle>')
    return _wrap(title, "", "".join(parts), [], f"{title}: {len(words)} words", (width, height), "chart map")


def _collect(metrics: Sequence[Mapping[str, float]], name: str) -> Floats:
    """(P, 2)"""
    pairs = [(line["step"], line[name]) for line in metrics if line.get(name) is not None]
    points = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return points[np.isfinite(points).all(axis=1)]


def _draw_figure(title: str, series: Sequence[Series], baseline: float | None, shows_last: bool = True) -> str:
    joined = np.concatenate([one.points for one in series])
    heights = joined[:, 1] if baseline is None else np.append(joined[:, 1], baseline)
    scale_x, (left, right) = _scale(joined[:, 0], 0.0, _LEFT, _WIDTH - _RIGHT)
    scale_y, (low, high) = _scale(heights, _ROOM, _HEIGHT - _BOTTOM, _TOP)
    parts = [_draw_tick(_LEFT - 7, scale_y(tick) + 3.5, "end", _write(tick)) for tick in _choose_ticks(low, high)]
    parts += [_draw_line("grid", scale_y(tick)) for tick in _choose_ticks(low, high)]
    parts += [_draw_tick(scale_x(tick), _HEIGHT - 8, "middle", _write(tick)) for tick in _choose_ticks(left, right)]
    if baseline is not None:
        parts.append(_draw_line("baseline", scale_y(baseline)))
    for one in series:
        hue, is_dotted = one.hue % _NUM_HUES, one.is_dotted or len(one.points) == 1
        shown = thin_points(one.points, _MOST_DOTS if is_dotted else _MOST_POINTS)
        places = [(scale_x(x), scale_y(y)) for x, y in shown.tolist()]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        if len(places) > 1:
            kind = "curve held-out" if is_dotted else "curve"
            parts.append(f'<path class="{kind} stroke-{hue}" d="M{path}"/>')
        if is_dotted:
            parts += [f'<circle class="dot fill-{hue}" cx="{x:.1f}" cy="{y:.1f}" r="2.7"/>' for x, y in places]
    keys = [_draw_key(one.label, one.hue, one.is_dotted) for one in series]
    if baseline is not None:
        keys.append("<li>dashed: guessing by token frequency</li>")
    last = ", ".join(f"{one.label} {_write(one.points[-1, 1])}" for one in series)
    words = f"{title} against the step: at the end {last}"
    return _wrap(title, last if shows_last else "", "".join(parts), keys if len(keys) > 1 else [], words)


def _wrap(
    title: str,
    value: str,
    drawing: str,
    keys: Sequence[str],
    words: str,
    size: tuple[int, int] = (_WIDTH, _HEIGHT),
    style: str = "chart",
) -> str:
    """A chart with its caption, its legend, and what it shows in words."""
    legend = f'<ul class="legend">{"".join(keys)}</ul>' if keys else ""
    return (
        f'<figure class="{style}"><figcaption>{html.escape(title)} <span class="value">{html.escape(value)}</span>'
        f'</figcaption><svg viewBox="0 0 {size[0]} {size[1]}" role="img" aria-label="{html.escape(words)}">'
        f"{drawing}</svg>{legend}</figure>"
    )


def _draw_key(label: str, hue: int, is_dotted: bool = False) -> str:
    kind = "key points" if is_dotted else "key"
    return f'<li><span class="{kind} ink-{hue % _NUM_HUES}"></span>{html.escape(label)}</li>'


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


def _draw_tick(x: float, y: float, anchor: str, words: str) -> str:
    return f'<text class="tick" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(words)}</text>'


def _write(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
