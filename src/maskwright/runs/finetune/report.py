"""The report of a fine-tuning run: curves.png and a self-contained report.html, with the pictures of its task."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from maskwright.runs.folder import RunFolder
from maskwright.runs.report import build_curves_html, build_page, plot_curves
from maskwright.storage import dump_yaml, write_text
from maskwright.tasks.config import TaskConfig
from maskwright.tasks.retrieval.dense import MRR_AT, PREFIX_SCORE
from maskwright.tasks.retrieval.rerank import ListReranking
from maskwright.tasks.sequence.classification import NUM_BINS, Calibration, Classification, calibrate
from maskwright.tasks.sequence.regression import Regression
from maskwright.tasks.similarity.text_similarity import ContrastiveSimilarity, CosineSimilarity
from maskwright.tasks.task import Scores, Task


def draw_task_pictures(task: Task, answers: Tensor, targets: Tensor, classes: Mapping[str, Scores]) -> list[Picture]:
    """Of the answers to all held-out examples and the scores of each class; an `ImportError` without matplotlib."""
    pictures = [draw_class_bars(classes)] if classes else []
    if isinstance(task, Classification):
        counts = count_confusions(answers.argmax(-1), targets, task.num_outputs)
        pictures.append(draw_confusion(task.classes, counts))
        pictures.append(draw_reliability(calibrate(answers, targets)))
    elif isinstance(task, Regression) and not isinstance(task, ListReranking):
        name = "cosine" if isinstance(task, CosineSimilarity) else "answer"
        pictures.append(draw_scatter(answers[:, 0], targets, name, is_same_scale=True))
    elif isinstance(task, ContrastiveSimilarity):
        labels = targets[:, 1]
        is_labelled = ~labels.isnan()
        if is_labelled.any():
            values = answers[is_labelled, 0], labels[is_labelled]
            pictures.append(draw_scatter(*values, "cosine", is_same_scale=False))
    return pictures


def build_pictures_html(pictures: Sequence[Picture]) -> str:
    return "".join(
        f"<h2>{html.escape(one.title)}</h2><p>{html.escape(one.caption)}</p>"
        f'<img alt="{html.escape(one.title)}" src="data:image/png;base64,{base64.b64encode(one.png).decode()}">'
        for one in pictures
    )


MOST_CLASSES = 20
"""Of one picture; of more classes those are shown that there is most to see of."""
BLUE, ORANGE, GREEN, GREY = "#3b6ea8", "#d98032", "#4a9a5b", "#777777"
_DOTS_PER_INCH = 110
_LONGEST_NAME = 28


@dataclass(frozen=True)
class Picture:
    title: str
    caption: str
    """What to see in it, in a sentence or two."""
    png: bytes


def render(figure: Any) -> bytes:
    """The PNG of a matplotlib figure."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DOTS_PER_INCH)
    return buffer.getvalue()


def shorten(name: str) -> str:
    """A class name that fits an axis, taken as it is: matplotlib would read what stands between dollars as formulas."""
    line = " ".join(name.split()).replace("$", r"\$")
    return line if len(line) <= _LONGEST_NAME else f"{line[: _LONGEST_NAME - 1]}…"


_CLASS_SCORES = {"precision": BLUE, "recall": ORANGE, "f1": GREEN}
_LABELS = {"precision": "precision", "recall": "recall", "f1": "F1"}
_BAR_HEIGHT = 0.26


def choose_worst(classes: Mapping[str, Mapping[str, float]], most: int) -> list[str]:
    """The classes with the lowest F1 among those that have examples, the lowest first; all in order where few."""
    if len(classes) <= most:
        return list(classes)
    known = [name for name in classes if classes[name]["examples"]] or list(classes)
    return sorted(known, key=lambda name: classes[name]["f1"])[:most]


def draw_class_bars(classes: Mapping[str, Mapping[str, float]]) -> Picture:
    from matplotlib.figure import Figure

    names = choose_worst(classes, MOST_CLASSES)
    figure = Figure(figsize=(8.0, 1.3 + 0.42 * len(names)), layout="constrained")
    axes = figure.subplots()
    for number, (score, colour) in enumerate(_CLASS_SCORES.items()):
        places = [place + (number - 1) * _BAR_HEIGHT for place in range(len(names))]
        values = [classes[name][score] for name in names]
        axes.barh(places, values, _BAR_HEIGHT, color=colour, label=_LABELS[score])
    labels = [f"{shorten(name)} ({classes[name]['examples']:,.0f})" for name in names]
    axes.set_yticks(range(len(names)), labels)
    axes.set(xlim=(0, 1), ylim=(len(names) - 0.4, -0.6))
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    figure.legend(
        *axes.get_legend_handles_labels(), loc="outside upper center", ncols=len(_CLASS_SCORES), frameon=False
    )
    return Picture("Scores of each class", _describe_classes(names, classes), render(figure))


def _describe_classes(names: list[str], classes: Mapping[str, Mapping[str, float]]) -> str:
    numbers = "Numbers of held-out examples stand in brackets."
    if len(names) == len(classes):
        return numbers
    return f"The {len(names)} of {len(classes)} classes with the lowest F1. {numbers}"


_DARK = 0.55
"""The share of a row from which a cell is so dark that its number is white."""
_LARGEST_FONT, _SMALLEST_FONT = 11.0, 7.5
_FITTING_CHARS = 40
"""Of names side by side under a matrix."""


def count_confusions(classes: Tensor, targets: Tensor, num_classes: int) -> Tensor:
    """(C, C) examples by their class and by the class they were given."""
    return torch.bincount(targets * num_classes + classes, minlength=num_classes**2).view(num_classes, num_classes)


def choose_confused(counts: Tensor, most: int) -> list[int]:
    """The classes of the commonest mistakes, in their own order; all where there are few."""
    if len(counts) <= most:
        return list(range(len(counts)))
    mistakes = counts - counts.diag().diag()
    chosen: list[int] = []
    for place in mistakes.flatten().argsort(descending=True, stable=True).tolist():
        chosen += [number for number in divmod(place, len(counts)) if number not in chosen]
        if len(chosen) >= most:
            break
    return sorted(chosen[:most])


def draw_confusion(classes: Sequence[str], counts: Tensor) -> Picture:
    """Cells are coloured by their share of the row and hold numbers of examples."""
    from matplotlib.figure import Figure

    chosen = choose_confused(counts, MOST_CLASSES)
    shown = counts[chosen][:, chosen]
    shares = shown / counts[chosen].sum(1, keepdim=True).clamp(min=1)
    side = min(9.5, 3.2 + 0.42 * len(chosen))
    figure = Figure(figsize=(side + 1.2, side), layout="compressed")
    axes = figure.subplots()
    image = axes.imshow(shares.numpy(), cmap="Blues", vmin=0.0, vmax=1.0)
    font = max(_SMALLEST_FONT, _LARGEST_FONT - 0.22 * len(chosen))
    for row, column in shown.nonzero().tolist():
        colour = "white" if shares[row, column] > _DARK else "#222222"
        axes.text(column, row, f"{int(shown[row, column])}", ha="center", va="center", color=colour, fontsize=font)
    names = [shorten(classes[number]) for number in chosen]
    places = range(len(names))
    is_long = max(map(len, names)) * len(names) > _FITTING_CHARS
    axes.set_xticks(places, names, rotation=60 if is_long else 0, ha="right" if is_long else "center")
    if is_long:
        for label in axes.get_xticklabels():
            label.set_rotation_mode("anchor")
    axes.set_yticks(places, names)
    axes.tick_params(labelsize=min(10.0, font + 1), length=0)
    axes.set(xlabel="answer", ylabel="label")
    figure.colorbar(image, ax=axes, shrink=0.8, label="share of the label's examples")
    return Picture("Confusion matrix", _describe_confusion(counts, shown), render(figure))


def _describe_confusion(counts: Tensor, shown: Tensor) -> str:
    caption = "Held-out examples by their label (row) and the answer to them (column)."
    if len(shown) == len(counts):
        return caption
    mistakes, seen = (int(one.sum() - one.diag().sum()) for one in (counts, shown))
    return (
        f"{caption} The {len(shown)} of {len(counts)} classes with the commonest mistakes: {seen:,} of all"
        f" {mistakes:,} mistakes are among them."
    )


def draw_reliability(calibration: Calibration) -> Picture:
    """Above the accuracy of each bin of confidence, below how many answers are in it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.2, 6.2), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    width = 1.0 / NUM_BINS
    is_filled = calibration.counts > 0
    left = [number * width for number in range(NUM_BINS)]
    filled = [one for one, there in zip(left, is_filled.tolist(), strict=True) if there]
    upper.bar(filled, calibration.accuracy[is_filled].numpy(), width, align="edge", color=BLUE, edgecolor="white")
    upper.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1, label="as right as it says")
    upper.plot(
        calibration.confidence[is_filled].numpy(),
        calibration.accuracy[is_filled].numpy(),
        color=ORANGE,
        marker="o",
        linestyle="none",
        label="mean confidence of the bar",
    )
    upper.set(ylabel="share of right answers", xlim=(0, 1), ylim=(0, 1.02))
    upper.legend(loc="upper left", frameon=False)
    lower.bar(left, calibration.counts.numpy(), width, align="edge", color=GREY, edgecolor="white")
    lower.set(xlabel="confidence (probability of the answer)", ylabel="answers")
    for axes in (upper, lower):
        axes.grid(alpha=0.25)
        axes.set_axisbelow(True)
    return Picture("Reliability", _describe_reliability(calibration), render(figure))


def _describe_reliability(calibration: Calibration) -> str:
    share = calibration.counts / calibration.counts.sum()
    gap = float((share * (calibration.confidence - calibration.accuracy)).sum())
    side = "too sure" if gap > 0 else "too modest"
    return (
        f"Bars under the diagonal are answers that were too sure, bars over it too modest. Expected calibration error"
        f" {calibration.error:.3f}; on the whole {abs(gap):.3f} {side}."
    )


_OPAQUE_POINTS = 100
_FAINTEST = 0.12
_MARGIN = 0.04


def draw_scatter(answers: Tensor, labels: Tensor, answer_name: str, *, is_same_scale: bool) -> Picture:
    """A point to each held-out example, the fainter the more there are; with a line where both should be equal."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.2, 6.0), layout="constrained")
    axes = figure.subplots()
    alpha = max(_FAINTEST, min(1.0, (_OPAQUE_POINTS / len(labels)) ** 0.5))
    axes.scatter(labels.numpy(), answers.numpy(), s=18, color=BLUE, alpha=alpha, linewidths=0)
    low, high = float(labels.min()), float(labels.max())
    if is_same_scale:
        axes.plot([low, high], [low, high], color=GREY, linestyle="--", linewidth=1, label="answer = label")
        axes.legend(loc="upper left", frameon=False)
    margin = _MARGIN * (high - low)
    axes.set(xlabel="label", ylabel=answer_name, xlim=(low - margin, high + margin))
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    return Picture(
        "Answers against labels", f"One point for each of {len(labels):,} held-out examples.", render(figure)
    )


_SCORES = (
    *("loss", "accuracy", "f1", "precision", "recall", "micro_f1", "macro_f1", "matthews", "pearson", "spearman"),
    "calibration_error",
    f"mrr@{MRR_AT}",
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
    named = [one for name in _SCORES for one in (name, *_list_prefixes(name, figures)) if one in figures]
    return {name: figures[name] for name in named}


def _list_prefixes(name: str, figures: Mapping[str, Any]) -> list[str]:
    """The same score of prefixes of vectors."""
    return [one for one in figures if one.startswith(f"{name}{PREFIX_SCORE}")]


def format_score(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _build_html(run: RunFolder, config: TaskConfig, figures: Mapping[str, Any], pictures: str) -> str:
    rows = [("diverged", html.escape(figures["trouble"]))] if "trouble" in figures else []
    rows += [(label, format_score(value)) for label, value in list_scores(figures).items()]
    rows.append(("held-out examples", f"{figures['examples']:,}"))
    rows.append(("trained on", f"{figures['train_examples']:,} examples in {figures['steps']:,} steps"))
    settings = html.escape(dump_yaml(config.model_dump(exclude_none=True)))
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
