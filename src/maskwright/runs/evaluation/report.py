"""What an evaluation hands back: figures of one model, or of two and their difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.errors import InputError
from maskwright.evaluation.figures import (
    INTERVAL,
    PAIRED_TEST,
    Difference,
    Figure,
    Groups,
    Measure,
    compute_differences,
    compute_figures,
    to_json,
)

ALL = ("all", "all")


@dataclass(frozen=True)
class ItemScores:
    """What one model gave each item of a suite."""

    measures: Sequence[Measure]
    unscored: Sequence[str | None]
    """Why an item has no score; None where it has one."""


@dataclass(frozen=True)
class Report:
    suite: str
    models: tuple[str, ...]
    """One, or two that are compared."""
    score: str
    """What the models were asked for."""
    items: str
    """What an item is, in the plural."""
    figures: tuple[list[Figure], ...]
    """Of each model."""
    differences: list[Difference] | None
    """The first model's less the second's."""
    left_out: Mapping[str, int]
    """How many items were not scored, by reason; of two models, those that either did not score."""
    totals: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        figures = [[to_json(figure) for figure in figures] for figures in self.figures]
        content: dict[str, Any] = {
            **self.totals,
            "suite": self.suite,
            "model": self.models[0],
            "score": self.score,
            "interval": INTERVAL,
            "left_out": dict(self.left_out),
            "figures": figures[0],
        }
        if self.differences is not None:
            content["against"] = {
                "model": self.models[1],
                "figures": figures[1],
                "test": PAIRED_TEST,
                "differences": [to_json(difference) for difference in self.differences],
            }
        return content


def build_report(
    suite: str,
    models: Sequence[str],
    scores: Sequence[ItemScores],
    *,
    score: str,
    items: str,
    groups: Groups,
    totals: Mapping[str, float] | None = None,
) -> Report:
    """Figures over the items that every model scored, so that two models answer the same questions."""
    reasons = [
        next((reason for reason in item if reason), None) for item in zip(*(s.unscored for s in scores), strict=True)
    ]
    is_scored = np.asarray([reason is None for reason in reasons], dtype=bool)
    left_out = {reason: reasons.count(reason) for reason in dict.fromkeys(reasons) if reason is not None}
    if not is_scored.any():
        counts = ", ".join(f"{reason}: {number}" for reason, number in left_out.items())
        raise InputError(f"none of the {len(reasons)} {items} can be scored ({counts}); give others or another model")
    chosen = {name: members & is_scored for name, members in {ALL: is_scored, **groups}.items()}
    present = {name: members for name, members in chosen.items() if members.any()}
    differences = None
    if len(scores) == 2:
        differences = compute_differences(scores[0].measures, scores[1].measures, present)
    figures = tuple(compute_figures(one.measures, present) for one in scores)
    return Report(suite, tuple(models), score, items, figures, differences, left_out, totals or {})


def group_by(kind: str, names: Sequence[str]) -> dict[tuple[str, str], NDArray[np.bool_]]:
    """The items of each name, sorted."""
    given = np.asarray(names, dtype=object)
    return {(kind, name): given == name for name in sorted(set(names))}
