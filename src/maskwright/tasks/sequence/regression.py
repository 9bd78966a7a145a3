"""Regression: a number for each example, such as the similarity of two sentences. B rows, N documents of a row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from maskwright.batch import find_asked
from maskwright.errors import InputError
from maskwright.objectives.loss import LossSums, as_sum
from maskwright.tasks.config import TaskConfig
from maskwright.tasks.examples import Example
from maskwright.tasks.labels import number_classes
from maskwright.tasks.task import Scores, Task, compute_pearson, compute_spearman

PROBLEM_TYPE = "regression"
_OUTPUT_NAME = "LABEL_0"


class Regression(Task):
    """The squared difference between answer and label, in the label's own units."""

    default_metric = "pearson"
    num_outputs = 1
    num_figures = 5
    """Sums of answers, labels, their squares and their products."""

    @classmethod
    def from_examples(cls, examples: Sequence[Example], config: TaskConfig) -> Regression:
        for name, is_set in (("class-weights", config.class_weights), ("label-smoothing", config.label_smoothing)):
            if is_set:
                raise InputError(f"--{name} is for classes; regression has none: leave it out")
        values = {_read_value(example) for example in examples}
        if len(values) < 2:
            raise InputError(
                f"all examples of {config.train} have the label {values.pop():g}; there is nothing to learn"
            )
        return cls()

    @classmethod
    def from_description(cls, config: Mapping[str, Any]) -> Regression:
        return cls()

    def encode_targets(self, examples: Sequence[Example]) -> Tensor:
        """(examples,)"""
        return torch.tensor([_read_value(example) for example in examples])

    def loss_sums(self, logits: Tensor, targets: Tensor) -> LossSums:
        """Logits (B, N, 1) against targets (B, N)."""
        is_asked = find_asked(targets)
        answers = logits.float()[..., 0].masked_fill(~is_asked, 0.0)
        wanted = targets.masked_fill(~is_asked, 0.0)
        loss = (answers - wanted).square().sum()
        with torch.no_grad():
            x, y = as_sum(answers), as_sum(wanted)
            figures = torch.stack([one.sum() for one in (x, y, x * x, y * y, x * y)])
        return LossSums(loss[None], is_asked.sum()[None], figures)

    def compute_metrics(self, sums: Sequence[float]) -> Scores:
        loss_sum, count, *moments = sums
        return {"loss": loss_sum / (count or math.nan), "pearson": compute_pearson(count, moments)}

    def score_answers(self, answers: Tensor, targets: Tensor, examples: Sequence[Example]) -> Scores:
        return {"spearman": compute_spearman(answers[:, 0], targets)}

    def prepare_head(self, output: nn.Linear, targets: Tensor) -> None:
        """Initialise the bias to the mean label."""
        nn.init.constant_(output.bias, float(targets.mean()))

    def describe(self) -> dict[str, Any]:
        return {**number_classes([_OUTPUT_NAME]), "problem_type": PROBLEM_TYPE}

    def describe_labels(self, targets: Tensor) -> str:
        return f"{targets.min():g} to {targets.max():g}, mean {targets.mean():.3g}"


def _read_value(example: Example) -> float:
    try:
        value = float(example.label)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise InputError(
            f"{example.place} has the label {example.label!r}; regression learns numbers: use classification for names"
        )
    return value
