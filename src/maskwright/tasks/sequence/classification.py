"""Classification: one of several classes for each example, class weights, and calibration.

B rows, N documents of a row, C classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maskwright.batch import find_asked
from maskwright.errors import InputError
from maskwright.objectives.loss import LossSums
from maskwright.tasks.config import TaskConfig
from maskwright.tasks.examples import Example
from maskwright.tasks.labels import collect_classes, describe_shares, find_class, number_classes, read_label
from maskwright.tasks.task import OneClassTask, Scores, compute_f1, compute_macro_f1, compute_matthews

PROBLEM_TYPE = "single_label_classification"
BALANCED = "balanced"
NUM_BINS = 15
"""Of equal width between 0 and 1, as in Guo et al. (2017), "On Calibration of Modern Neural Networks"."""


class Classification(OneClassTask):
    """Predicts one class for each example."""

    default_metric = "accuracy"

    @classmethod
    def from_examples(cls, examples: Sequence[Example], config: TaskConfig) -> Classification:
        """The classes are those of the training examples."""
        labels = [read_label(example) for example in examples]
        classes = collect_classes(labels, len(examples), config.train)
        weights = None
        if config.class_weights is not None:
            counts = Counter(labels)
            weights = weigh_classes(config.class_weights, {name: counts[name] for name in classes})
        return cls(classes, weights, config.label_smoothing)

    @property
    def num_figures(self) -> int:
        """Hits, predictions and labels of each class."""
        return 3 * len(self.classes)

    def encode_targets(self, examples: Sequence[Example]) -> Tensor:
        """(examples,)"""
        numbers = {name: number for number, name in enumerate(self.classes)}
        return torch.tensor([find_class(numbers, read_label(one), one.place) for one in examples])

    def loss_sums(self, logits: Tensor, targets: Tensor) -> LossSums:
        """Logits (B, N, C) against targets (B, N)."""
        loss = self.sum_cross_entropy(logits, targets)
        is_asked = find_asked(targets).flatten()
        with torch.no_grad():
            actual = F.one_hot(targets.flatten().clamp(min=0), self.num_outputs) * is_asked[:, None]
            predicted = F.one_hot(logits.argmax(-1).flatten(), self.num_outputs) * is_asked[:, None]
            figures = torch.stack([actual * predicted, predicted, actual]).sum(1).flatten()
        return LossSums(loss[None], is_asked.sum()[None], figures)

    def compute_metrics(self, sums: Sequence[float]) -> Scores:
        loss_sum, count, *figures = sums
        hits, predicted, actual = _split(figures)
        num_examples = count or float("nan")
        return {
            "loss": loss_sum / num_examples,
            "accuracy": sum(hits) / num_examples,
            "macro_f1": compute_macro_f1(hits, predicted, actual),
            "matthews": compute_matthews(hits, predicted, actual),
        }

    def score_classes(self, sums: Sequence[float]) -> dict[str, Scores]:
        return score_each(self.classes, sums[2:])

    def score_answers(self, answers: Tensor, targets: Tensor, examples: Sequence[Example]) -> Scores:
        return {"calibration_error": calibrate(answers, targets).error}

    def describe(self) -> dict[str, Any]:
        return {**number_classes(self.classes), "problem_type": PROBLEM_TYPE}

    def describe_labels(self, targets: Tensor) -> str:
        counts = torch.bincount(targets, minlength=self.num_outputs).tolist()
        return describe_shares(self.classes, counts, len(targets))


def score_each(classes: Sequence[str], figures: Sequence[float]) -> dict[str, Scores]:
    """Precision, recall and F1 of each class, and how many examples have it."""
    return {
        name: {
            "precision": hits / predicted if predicted else 0.0,
            "recall": hits / actual if actual else 0.0,
            "f1": compute_f1(hits, predicted, actual),
            "examples": actual,
        }
        for name, hits, predicted, actual in zip(classes, *_split(figures), strict=True)
    }


def _split(figures: Sequence[float]) -> tuple[Sequence[float], Sequence[float], Sequence[float]]:
    """Hits, predictions and labels of each class."""
    size = len(figures) // 3
    return figures[:size], figures[size : 2 * size], figures[2 * size :]


def read_weights(text: str, classes: Sequence[str]) -> list[float] | None:
    """The class weights in 'a,b,c'; None for 'balanced'."""
    if text == BALANCED:
        return None
    try:
        weights = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"--class-weights is '{text}'; expected {BALANCED}, or numbers such as 1,2.5") from error
    if len(weights) != len(classes):
        raise InputError(
            f"--class-weights has {len(weights)} numbers, there are {len(classes)} classes; give one for each, in the"
            f" order {', '.join(classes)}"
        )
    if not all(0.0 < weight < float("inf") for weight in weights):
        raise InputError(f"--class-weights is '{text}'; every weight must be positive")
    return weights


def weigh_classes(text: str, counts: Mapping[str, int]) -> list[float]:
    """Weights with a mean of 1 over the examples, so that the learning rate keeps its meaning.

    `balanced` gives all classes the same total weight: a class with n of N examples, among C classes, weighs N / (C n).
    """
    classes, total = list(counts), sum(counts.values())
    weights = read_weights(text, classes) or [total / (len(classes) * counts[name]) for name in classes]
    mean = sum(weight * counts[name] for name, weight in zip(classes, weights, strict=True)) / total
    return [weight / mean for weight in weights]


def weigh_positives(text: str, counts: Mapping[str, int], num_examples: int) -> list[float]:
    """Weights of positives relative to negatives, for multi-label classes.

    `balanced` gives the positives of a class the same total weight as its negatives.
    """
    weights = read_weights(text, list(counts))
    return weights or [max(num_examples - count, 1) / count for count in counts.values()]


@dataclass(frozen=True)
class Calibration:
    """Predictions binned by confidence, which is the probability of the predicted class."""

    counts: Tensor
    """(bins,)"""
    confidence: Tensor
    """(bins,) the mean of each bin; 0 where it is empty."""
    accuracy: Tensor
    """(bins,) the share of right answers."""

    @property
    def error(self) -> float:
        """The mean distance of confidence and accuracy, each bin weighted by its answers."""
        return float((self.counts * (self.confidence - self.accuracy).abs()).sum() / self.counts.sum())


def calibrate(logits: Tensor, targets: Tensor) -> Calibration:
    """Logits (examples, C) against the right classes (examples,)."""
    confidence, chosen = logits.double().softmax(-1).max(-1)
    bins = (confidence * NUM_BINS).long().clamp(max=NUM_BINS - 1)
    empty = torch.zeros(NUM_BINS, dtype=torch.float64)
    counts = empty.index_add(0, bins, torch.ones_like(confidence))
    sums = [empty.index_add(0, bins, values) for values in (confidence, (chosen == targets).double())]
    means = [one / counts.clamp(min=1) for one in sums]
    return Calibration(counts, means[0], means[1])
