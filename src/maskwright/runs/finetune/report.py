"""What a fine-tuning run looks like: curves.png and a self-contained report.html."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import yaml

from maskwright.runs.finetune.pictures import Picture, build_pictures_html
from maskwright.runs.folder import RunFolder
from maskwright.runs.report import build_curves_html, build_page, plot_curves
from maskwright.storage import write_text
from maskwright.tasks.config import TaskConfig

_SCORES = (
    *("loss", "accuracy", "f1", "precision", "recall", "micro_f1", "macro_f1", "matthews", "pearson", "spearman"),
    "calibration_error",
    *("strict_f1", "exact_f1", "partial_f1", "type_f1"),
    *("exact", "has_answer_f1", "no_answer_exact", "best_f1", "window_exact", "window_f1"),
)


def write_task_report(
    run: RunFolder, config: TaskConfig, figures: Mapping[str, Any], draw: Callable[[], Sequence[Picture]]
) -> list[str]:
    """Write both files; `draw` makes the task's own pictures. The sentences returned say what had to be left out."""
    notes, pictures = [], ""
    try:
        plot_curves(run.read_metrics(), None, run.curves_file)
        pictures = build_pictures_html(draw())
    except ImportError:
        notes.append("no curves.png: pictures need an extra, pip install 'maskwright[track]'")
    write_text(run.report_file, _build_html(run, config, figures, pictures))
    return notes


def list_scores(figures: Mapping[str, Any]) -> dict[str, float | None]:
    """The scores among a run's figures; None where one could not be computed."""
    return {name: figures[name] for name in _SCORES if name in figures}


def format_score(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _build_html(run: RunFolder, config: TaskConfig, figures: Mapping[str, Any], pictures: str) -> str:
    rows = [("diverged", html.escape(figures["trouble"]))] if "trouble" in figures else []
    rows += [(label, format_score(value)) for label, value in list_scores(figures).items()]
    rows.append(("held-out examples", f"{figures['examples']:,}"))
    rows.append(("trained on", f"{figures['train_examples']:,} examples in {figures['steps']:,} steps"))
    settings = html.escape(yaml.safe_dump(config.model_dump(exclude_none=True), sort_keys=False))
    classes = _build_class_table(figures.get("classes", {}))
    return build_page(
        run.path.name,
        f"<h2>Held-out examples</h2>{_build_table(rows)}{classes}{pictures}{build_curves_html(run.read_metrics())}"
        f"<h2>Task</h2><pre>{settings}</pre>",
    )


def _build_class_table(classes: Mapping[str, Mapping[str, float]]) -> str:
    if not classes:
        return ""
    header = ("class", "precision", "recall", "F1", "examples")
    rows = [
        (name, *(f"{one[score]:.3f}" for score in ("precision", "recall", "f1")), f"{one['examples']:,.0f}")
        for name, one in classes.items()
    ]
    return f"<h2>Classes</h2>{_build_table([header, *rows])}"


def _build_table(rows: Sequence[Sequence[str]]) -> str:
    cells = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows]
    return f"<table>{''.join(f'<tr>{one}</tr>' for one in cells)}</table>"
