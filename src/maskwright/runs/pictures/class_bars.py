"""Precision, recall and F1 of each class or kind of entity, side by side."""

from __future__ import annotations

from collections.abc import Mapping

from maskwright.runs.pictures.style import BLUE, GREEN, MOST_CLASSES, ORANGE, Picture, render, shorten

_SCORES = {"precision": BLUE, "recall": ORANGE, "f1": GREEN}
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
    for number, (score, colour) in enumerate(_SCORES.items()):
        places = [place + (number - 1) * _BAR_HEIGHT for place in range(len(names))]
        values = [classes[name][score] for name in names]
        axes.barh(places, values, _BAR_HEIGHT, color=colour, label=_LABELS[score])
    labels = [f"{shorten(name)} ({classes[name]['examples']:,.0f})" for name in names]
    axes.set_yticks(range(len(names)), labels)
    axes.set(xlim=(0, 1), ylim=(len(names) - 0.4, -0.6))
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=len(_SCORES), frameon=False)
    return Picture("Scores of each class", _describe(names, classes), render(figure))


def _describe(names: list[str], classes: Mapping[str, Mapping[str, float]]) -> str:
    numbers = "Numbers of held-out examples stand in brackets."
    if len(names) == len(classes):
        return numbers
    return f"The {len(names)} of {len(classes)} classes with the lowest F1. {numbers}"
