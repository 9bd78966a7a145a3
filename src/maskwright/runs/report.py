"""The report of a run: curves.png, and a self-contained report.html with curves as the board draws them."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from maskwright.config import Config
from maskwright.inference.visualize import PredictionView
from maskwright.pictures.charts import Panels, draw_bars, draw_curves, draw_rows, draw_word_map, frame
from maskwright.pictures.look import build_facts, frame_cell, read_look
from maskwright.runs.folder import RunFolder
from maskwright.runs.insight import Insight
from maskwright.storage import dump_yaml, naming, write_text

_PANELS: Panels = (
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
"""Of curves.png, and first in report.html."""
PANELS: Panels = (
    *_PANELS,
    ("Gradient norm", {"grad_norm": "gradient norm"}),
    ("Mask ratio", {"mask_ratio": "mask ratio"}),
    ("Share of time waiting for data", {"data_wait": "waiting"}),
)
_STYLE = """
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.2rem; margin-top: 2rem }
table { width: 100% } th, td { text-align: left; padding: .25rem .8rem .25rem 0; vertical-align: top }
th { white-space: nowrap; width: 1% } tr { border-bottom: 1px solid var(--line) }
caption { text-align: left; color: var(--soft); padding-top: 1rem }
.wide { overflow-x: auto }
img { max-width: 100%; background: #fff; border-radius: 8px }
pre { background: var(--sunken); border-radius: 8px; padding: 1rem; overflow-x: auto }
b.right { color: var(--good) !important } b.wrong { color: var(--bad) !important }
b.masked { color: var(--soft) !important }
"""


def write_report(
    run: RunFolder,
    config: Config,
    figures: dict[str, Any],
    predictions: PredictionView | None,
    insight: Insight | None = None,
) -> list[str]:
    """Write both files; returns a sentence for each part that had to be left out."""
    metrics = run.read_metrics()
    notes = []
    try:
        plot_curves(metrics, figures.get("unigram_loss"), run.curves_file)
    except ImportError:
        notes.append("no curves.png: pictures need an extra, pip install 'maskwright[track]'")
    write_text(run.report_file, _build_html(run, config, figures, predictions, insight))
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


def _build_html(
    run: RunFolder,
    config: Config,
    figures: dict[str, Any],
    predictions: PredictionView | None,
    insight: Insight | None,
) -> str:
    labelled = {"diverged": html.escape(figures["trouble"])} if "trouble" in figures else {}
    labelled |= format_figures(figures)
    rows = "".join(f"<tr><th>{label}</th><td>{value}</td></tr>" for label, value in labelled.items())
    shown = "" if predictions is None else f"<h2>Held-out predictions</h2>{predictions._repr_html_()}"
    settings = dump_yaml(config.model_dump(by_alias=True, exclude_none=True))
    curves = build_curves_html(run.read_metrics(), figures.get("unigram_loss"))
    learnt = "" if insight is None else build_insight_html(insight)
    return build_page(
        config.run.name,
        f"<h2>Figures</h2><table>{rows}</table>{curves}{learnt}{shown}<h2>Configuration</h2>"
        f"<pre>{html.escape(settings)}</pre>",
    )


def build_curves_html(metrics: list[dict[str, float]], unigram_loss: float | None = None) -> str:
    """Those of curves.png as SVG, which needs no library."""
    baselines = {} if unigram_loss is None else {"Loss": unigram_loss}
    curves = draw_curves(metrics, PANELS, baselines)
    return f"<h2>Curves</h2>{curves}" if curves else ""


def build_insight_html(insight: Insight) -> str:
    """Accuracy by frequency and part of speech, and the map of words, each with a sentence on what it shows."""
    parts = []
    if insight.bands:
        shares = [band.accuracy for band in insight.bands]
        chart = draw_bars("Right answers by frequency", [band.label for band in insight.bands], {"accuracy": shares})
        asked = ", ".join(f"{band.label}: {band.asked:,}" for band in insight.bands)
        parts.append(
            "<h2>Frequent and rare tokens</h2><p>Held-out tokens that the model predicted right, by how often they"
            f" stand among a million tokens of the training text. Asked for: {asked}.</p>{frame([chart])}"
        )
    if insight.speech:
        labels = [f"{band.label} ({band.asked:,})" for band in insight.speech]
        chart = draw_rows("Right answers by part of speech", labels, {"": [band.accuracy for band in insight.speech]})
        parts.append(
            "<h2>Parts of speech</h2><p>Tokens that the model predicted right in the sentences of data.parts_of_speech,"
            " by the part of speech of their words, the most frequent first. In brackets: how many were asked for.</p>"
            f"{frame([chart])}"
        )
    if insight.words:
        parts.append(
            "<h2>Map of words</h2><p>The most frequent words by their input embeddings, on the two directions in which"
            f" these differ most ({insight.explained:.0%} of the variance).</p>{draw_word_map('Words', insight.words)}"
        )
    return "".join(parts)


def build_page(title: str, body: str) -> str:
    """A self-contained report in the look of the board; `body` is HTML."""
    name = html.escape(title)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{name}</title><style>{read_look()}{_STYLE}</style></head>"
        f"<body><h1>{name}</h1>{body}</body></html>\n"
    )


def build_run_cell(run: RunFolder, figures: Mapping[str, Any], shown: Mapping[str, str]) -> str:
    """What a notebook shows of a finished run: its figures, and its first curves."""
    baselines = {"Loss": figures["unigram_loss"]} if "unigram_loss" in figures else {}
    curves = draw_curves(run.read_metrics(), _PANELS, baselines)
    return frame_cell(build_facts(str(run.path), shown) + curves)


def format_figures(figures: dict[str, Any]) -> dict[str, str]:
    """The figures of a run in words."""
    formatted = {}
    if "loss" in figures:
        loss = figures.get("generator_loss", figures.get("mlm_loss", figures["loss"]))
        gain = figures["unigram_loss"] - loss
        side = "under" if gain >= 0 else "over"
        asked = figures.get("asked", "masked")
        measure, scope = "held-out loss", f"{figures['num_masked']:,} held-out {asked} tokens"
        if figures.get("objective") == "diffusion":
            measure, scope = "held-out bound", f"those masked of {figures['num_masked']:,} held-out tokens"
        formatted = {
            measure: f"{loss:.3f} ({abs(gain):.2f} nats {side} the unigram baseline {figures['unigram_loss']:.3f})",
            f"{asked} accuracy": f"{figures['accuracy']:.1%} of {scope}",
            "perplexity": f"{figures['perplexity']:.1f}",
        }
    for key, label in (("sources", "held-out loss by source"), ("unseen", "unseen text")):
        if key in figures:
            formatted[label] = ", ".join(
                f"{name} {one['loss']:.3f}" + (f" (unigram {one['unigram_loss']:.3f})" if "unigram_loss" in one else "")
                for name, one in figures[key].items()
            )
    if "pair_accuracy" in figures:
        formatted["pair accuracy"] = f"{figures['pair_accuracy']:.1%} of held-out pairs"
    if "replaced_auc" in figures:
        formatted["replaced tokens"] = (
            f"AUC {figures['replaced_auc']:.3f}, {figures['replaced_accuracy']:.1%} of all tokens judged right"
            " (the figures above are the generator's)"
        )
    if "teacher_parameters" in figures:
        formatted |= _format_teacher(figures)
    return formatted | {
        "trained on": f"{figures['tokens']:,} tokens in {figures['steps']:,} steps, {figures['seconds']:.0f} s"
        f" ({figures['tokens'] / max(figures['seconds'], 1e-9):,.0f} tokens/s)",
        "parameters": f"{figures['parameters']:,}",
    }


def _format_teacher(figures: dict[str, Any]) -> dict[str, str]:
    """Quality, size and speed of a student beside its teacher's."""
    taught = figures.get("teacher_loss")
    quality = "" if taught is None else f", of the teacher {taught:.3f} ({figures['teacher_accuracy']:.1%})"
    size, speed = figures["teacher_parameters"], figures["teacher_encoder_tokens_per_s"]
    return {
        "before": f"loss {figures['loss_before']:.3f} ({figures['accuracy_before']:.1%}){quality}",
        "size": f"{figures['parameters'] / size:.0%} of the teacher's {size:,} parameters",
        "speed": f"{figures['encoder_tokens_per_s']:,.0f} tokens/s through the encoder,"
        f" {figures['encoder_tokens_per_s'] / speed:.1f} times the teacher's",
    }
