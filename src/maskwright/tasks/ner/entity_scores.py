"""How well entities are found in part: the measures of SemEval 2013, by nervaluate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from maskwright.tasks.ner.tagging import Entity
from maskwright.tasks.task import Scores

_NAMES = {"strict": "strict_f1", "exact": "exact_f1", "partial": "partial_f1", "ent_type": "type_f1"}


def compute_entity_scores(
    actual: Sequence[Sequence[Entity]], predicted: Sequence[Sequence[Entity]], types: Sequence[str]
) -> Scores:
    """F1 with bounds and type right, bounds alone, bounds in part (for half), and the type alone where they overlap.

    Needs the extra `eval`.
    """
    from nervaluate.evaluator import Evaluator

    # Rows without any entity count for nothing.
    pairs = [(wanted, found) for wanted, found in zip(actual, predicted, strict=True) if wanted or found]
    if not pairs:
        return dict.fromkeys(_NAMES.values(), 0.0)
    rows = [[_describe(row) for row in side] for side in zip(*pairs, strict=True)]
    overall = Evaluator(*rows, tags=list(types), loader="dict").evaluate()["overall"]
    return {name: float(overall[theirs].f1) for theirs, name in _NAMES.items()}


def _describe(entities: Sequence[Entity]) -> list[dict[str, Any]]:
    """Their ends are the last word's place."""
    return [{"label": one.type, "start": one.start, "end": one.stop - 1} for one in entities]
