"""Which classes are taken for which: a matrix of held-out examples. C classes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from maskwright.runs.pictures.style import MOST_CLASSES, Picture, render, shorten

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
    return Picture("Confusion matrix", _describe(counts, shown), render(figure))


def _describe(counts: Tensor, shown: Tensor) -> str:
    caption = "Held-out examples by their label (row) and the answer to them (column)."
    if len(shown) == len(counts):
        return caption
    mistakes, seen = (int(one.sum() - one.diag().sum()) for one in (counts, shown))
    return (
        f"{caption} The {len(shown)} of {len(counts)} classes with the commonest mistakes: {seen:,} of all"
        f" {mistakes:,} mistakes are among them."
    )
