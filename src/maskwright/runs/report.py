"""The report of a run: curves.png, and a self-contained report.html with curves as the board draws them."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from maskwright.config import Config
from maskwright.inference.visualize import PredictionView
from maskwright.runs.folder import RunFolder
from maskwright.runs.thinning import Floats, thin_points
from maskwright.storage import dump_yaml, naming, write_text

_PANELS = (
    ("Loss", {"loss": "training", "val_loss": "held-out"}),
    (
        "Accuracy",
        {
            "mlm_accuracy": "training",
            "val_mlm_accuracy": "held-out",
            "clm_accuracy": "training",
            "val_clm_accuracy": "held-out",
            "accuracy": "training",
            "val_accuracy": "held-out",
            "pearson": "training",
            "val_pearson": "held-out",
        },
    ),
    ("Learning rate", {"lr": "learning rate"}),
    ("Tokens per second", {"tokens_per_s": "tokens/s"}),
)
_STYLE = """
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.2rem; margin-top: 2rem }
table { width: 100% } th, td { text-align: left; padding: .25rem .8rem .25rem 0; vertical-align: top }
th { white-space: nowrap; width: 1% } tr { border-bottom: 1px solid var(--line) }
caption { text-align: left; color: var(--soft); padding-top: 1rem }
img { max-width: 100%; background: #fff; border-radius: 8px }
pre { background: var(--sunken); border-radius: 8px; padding: 1rem; overflow-x: auto }
b.right { color: var(--good) !important } b.wrong { color: var(--bad) !important }
b.masked { color: var(--soft) !important }
"""
_WIDTH, _HEIGHT = 520, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 10, 8, 26
_MOST_POINTS, _MOST_DOTS = 2 * (_WIDTH - _LEFT - _RIGHT), 60
_ROOM = 0.05
"""Above and below the curves, as a share of their height."""
_STEPS = (1, 2, 2.5, 5, 10)
Panels = Sequence[tuple[str, Mapping[str, str]]]


def write_report(
    run: RunFolder, config: Config, figures: dict[str, Any], predictions: PredictionView | None
) -> list[str]:
    """Write both files; returns a sentence for each part that had to be left out."""
    metrics = run.read_metrics()
    notes = []
    try:
        plot_curves(metrics, figures.get("unigram_loss"), run.curves_file)
    except ImportError:
        notes.append("no curves.png: pictures need an extra, pip install 'maskwright[track]'")
    write_text(run.report_file, _build_html(run, config, figures, predictions))
    return notes


def plot_curves(metrics: list[dict[str, float]], unigram_loss: float | None, path: Path) -> None:
    """Loss, accuracy, learning rate and speed against the step."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    for axes, (title, series) in zip(figure.subplots(2, 2).flat, _PANELS, strict=True):
        for name, label in series.items():
            points = [(line["step"], line[name]) for line in metrics if name in line]
            if points:
                style = {"marker": "o"} if name.startswith("val_") else {"linewidth": 1.2}
                axes.plot(*zip(*points, strict=True), label=label, **style)
        if title == "Loss" and unigram_loss is not None:
            axes.axhline(unigram_loss, color="grey", linestyle="--", linewidth=1, label="unigram baseline")
        axes.set(title=title, xlabel="step")
        axes.grid(alpha=0.3)
        if len(axes.get_legend_handles_labels()[0]) > 1:
            axes.legend()
    with naming(path):
        figure.savefig(path)


def _build_html(run: RunFolder, config: Config, figures: dict[str, Any], predictions: PredictionView | None) -> str:
    labelled = {"diverged": html.escape(figures["trouble"])} if "trouble" in figures else {}
    labelled |= format_figures(figures)
    rows = "".join(f"<tr><th>{label}</th><td>{value}</td></tr>" for label, value in labelled.items())
    shown = "" if predictions is None else f"<h2>Held-out predictions</h2>{predictions._repr_html_()}"
    settings = dump_yaml(config.model_dump(by_alias=True, exclude_none=True))
    curves = build_curves_html(run.read_metrics(), figures.get("unigram_loss"))
    return build_page(
        config.run.name,
        f"<h2>Figures</h2><table>{rows}</table>{curves}{shown}<h2>Configuration</h2><pre>{html.escape(settings)}</pre>",
    )


def build_curves_html(metrics: list[dict[str, float]], unigram_loss: float | None = None) -> str:
    """Those of curves.png as SVG, which needs no library."""
    baselines = {} if unigram_loss is None else {"Loss": unigram_loss}
    curves = draw_curves(metrics, _PANELS, baselines)
    return f"<h2>Curves</h2>{curves}" if curves else ""


def build_page(title: str, body: str) -> str:
    """A self-contained report in the look of the board; `body` is HTML."""
    name = html.escape(title)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{name}</title><style>{read_look()}{_STYLE}</style></head>"
        f"<body><h1>{name}</h1>{body}</body></html>\n"
    )


def format_figures(figures: dict[str, Any]) -> dict[str, str]:
    """The figures of a run in words."""
    formatted = {}
    if "loss" in figures:
        loss = figures.get("generator_loss", figures.get("mlm_loss", figures["loss"]))
        gain = figures["unigram_loss"] - loss
        side = "under" if gain >= 0 else "over"
        asked = figures.get("asked", "masked")
        formatted = {
            "held-out loss": f"{loss:.3f} ({abs(gain):.2f} nats {side} the unigram baseline"
            f" {figures['unigram_loss']:.3f})",
            f"{asked} accuracy": f"{figures['accuracy']:.1%} of {figures['num_masked']:,} held-out {asked} tokens",
            "perplexity": f"{figures['perplexity']:.1f}",
        }
    if "pair_accuracy" in figures:
        formatted["pair accuracy"] = f"{figures['pair_accuracy']:.1%} of held-out pairs"
    if "replaced_auc" in figures:
        formatted["replaced tokens"] = (
            f"AUC {figures['replaced_auc']:.3f}, {figures['replaced_accuracy']:.1%} of all tokens judged right"
            " (the figures above are the generator's)"
        )
    return formatted | {
        "trained on": f"{figures['tokens']:,} tokens in {figures['steps']:,} steps, {figures['seconds']:.0f} s"
        f" ({figures['tokens'] / max(figures['seconds'], 1e-9):,.0f} tokens/s)",
        "parameters": f"{figures['parameters']:,}",
    }


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
