"""Answers against labels, where both are numbers."""

from __future__ import annotations

from torch import Tensor

from maskwright.runs.pictures.style import BLUE, GREY, Picture, render

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
