"""Any number of classes for each example. B rows, N documents of a row, C classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maskwright.batch import find_asked
from maskwright.errors import InputError
from maskwright.objectives.loss import LossSums, as_sum
from maskwright.suggestions import name_option
from maskwright.tasks.config import TaskConfig
from maskwright.tasks.examples import Example
from maskwright.tasks.labels import (
    collect_classes,
    describe_shares,
    find_class,
    find_separator,
    number_classes,
    read_classes,
    read_labels,
)
from maskwright.tasks.sequence.classification import score_each, weigh_positives
from maskwright.tasks.task import Scores, Task, compute_f1, compute_macro_f1

PROBLEM_TYPE = "multi_label_classification"


class MultiLabel(Task):
    """Multi-label classification: a class is predicted if its logit is above 0."""

    default_metric = "micro_f1"
    positive_weights: Tensor | None

    def __init__(
        self,
        classes: Sequence[str],
        positive_weights: Sequence[float] | None = None,
        label_smoothing: float = 0.0,
        separator: str | None = None,
    ) -> None:
        super().__init__()
        self.classes = tuple(classes)
        self.label_smoothing = label_smoothing
        self.separator = separator
        weights = None if positive_weights is None else torch.tensor(positive_weights)
        self.register_buffer("positive_weights", weights, persistent=False)

    @classmethod
    def from_examples(cls, examples: Sequence[Example], config: TaskConfig) -> MultiLabel:
        """The classes are those of the training examples."""
        separator = find_separator(examples)
        labels = [name for example in examples for name in set(read_labels(example, separator))]
        classes = collect_classes(labels, len(examples), config.train)
        weights = None
        if config.class_weights is not None:
            counts = Counter(labels)
            weights = weigh_positives(config.class_weights, {name: counts[name] for name in classes}, len(examples))
        return cls(classes, weights, config.label_smoothing, separator)

    @classmethod
    def from_description(cls, config: Mapping[str, Any]) -> MultiLabel:
        return cls(read_classes(config))

    @property
    def num_outputs(self) -> int:
        return len(self.classes)

    @property
    def num_figures(self) -> int:
        """Hits, predictions and labels of each class, and examples answered without a mistake."""
        return 3 * len(self.classes) + 1

    def encode_targets(self, examples: Sequence[Example]) -> Tensor:
        """(examples, C) of 0 and 1."""
        numbers = {name: number for number, name in enumerate(self.classes)}
        targets = torch.zeros(len(examples), self.num_outputs)
        for row, example in zip(targets, examples, strict=True):
            for name in read_labels(example, self.separator):
                row[find_class(numbers, name, example.place)] = 1.0
        if not targets.any():
            raise InputError(f"no example up to {examples[-1].place} has a label; check {name_option('label_column')}")
        return targets

    def loss_sums(self, logits: Tensor, targets: Tensor) -> LossSums:
        """Logits (B, N, C) against targets (B, N, C); the loss of an example is the mean over its classes."""
        is_asked = find_asked(targets)[..., None]
        wanted = targets.masked_fill(~is_asked, 0.0)
        smoothed = wanted * (1.0 - self.label_smoothing) + 0.5 * self.label_smoothing
        losses = F.binary_cross_entropy_with_logits(
            logits.float(), smoothed, reduction="none", pos_weight=self.positive_weights
        )
        loss = losses.masked_fill(~is_asked, 0.0).sum() / self.num_outputs
        with torch.no_grad():
            predicted = as_sum((logits > 0) & is_asked)
            per_class = torch.stack([predicted * wanted, predicted, as_sum(wanted)]).sum((1, 2)).flatten()
            num_perfect = ((predicted == wanted).all(-1) & is_asked[..., 0]).sum()
        return LossSums(loss[None], is_asked.sum()[None], torch.cat([per_class, num_perfect[None]]))

    def compute_metrics(self, sums: Sequence[float]) -> Scores:
        loss_sum, count, *per_class, num_perfect = sums
        size, num_examples = self.num_outputs, count or float("nan")
        hits, predicted, actual = per_class[:size], per_class[size : 2 * size], per_class[2 * size :]
        return {
            "loss": loss_sum / num_examples,
            "accuracy": num_perfect / num_examples,
            "micro_f1": compute_f1(sum(hits), sum(predicted), sum(actual)),
            "macro_f1": compute_macro_f1(hits, predicted, actual),
        }

    def score_classes(self, sums: Sequence[float]) -> dict[str, Scores]:
        return score_each(self.classes, sums[2:-1])

    def describe(self) -> dict[str, Any]:
        return {**number_classes(self.classes), "problem_type": PROBLEM_TYPE}

    def describe_labels(self, targets: Tensor) -> str:
        return describe_shares(self.classes, targets.sum(0).tolist(), len(targets))
