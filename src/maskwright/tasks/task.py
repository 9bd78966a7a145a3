"""The task of a model: its labels, the targets of examples, and the scores of answers. C classes.

Hits, predicted and actual counts of each class are enough for all scores, so no confusion matrix is kept.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskwright.batch import IGNORED_LABEL, PackedBatch
from maskwright.objectives.loss import LossSums
from maskwright.tasks.labels import read_classes
from maskwright.text.tokenizer.tokenizer import Tokenizer

Counts = Sequence[float]
_LEAST_VARIANCE = 1e-12
"""Relative to the mean square; smaller variances are rounding errors."""


def compute_f1(num_hits: float, num_predicted: float, num_actual: float) -> float:
    """The harmonic mean of precision and recall; 0 if there is nothing to find or nothing was found."""
    return 2.0 * num_hits / (num_predicted + num_actual) if num_predicted + num_actual else 0.0


def compute_macro_f1(hits: Counts, predicted: Counts, actual: Counts) -> float:
    """The mean over the classes that occur, predicted or actual."""
    scores = [compute_f1(*one) for one in zip(hits, predicted, actual, strict=True) if one[1] + one[2]]
    return sum(scores) / len(scores) if scores else math.nan


def compute_matthews(hits: Counts, predicted: Counts, actual: Counts) -> float:
    """The correlation of answers and labels, for any number of classes (Gorodkin 2004); 0 where one is constant."""
    total = sum(actual)
    if not total:
        return math.nan
    covariance = sum(hits) * total - sum(p * a for p, a in zip(predicted, actual, strict=True))
    spread = (total**2 - sum(p * p for p in predicted)) * (total**2 - sum(a * a for a in actual))
    return covariance / math.sqrt(spread) if spread > 0 else 0.0


def compute_pearson(count: float, moments: Sequence[float]) -> float:
    """From the sums of x, y, x*x, y*y and x*y; NaN if one of the two is constant."""
    if not count:
        return math.nan
    x, y, xx, yy, xy = (moment / count for moment in moments)
    variances = xx - x * x, yy - y * y
    if variances[0] <= _LEAST_VARIANCE * xx or variances[1] <= _LEAST_VARIANCE * yy:
        return math.nan
    return (xy - x * y) / math.sqrt(variances[0] * variances[1])


def compute_spearman(first: Tensor, second: Tensor) -> float:
    """The correlation of the ranks of two vectors; equal values share their mean rank."""
    x, y = _rank(first), _rank(second)
    return compute_pearson(len(x), [float(one.sum()) for one in (x, y, x * x, y * y, x * y)])


def _rank(values: Tensor) -> Tensor:
    """Centred, so that the moments lose nothing."""
    _, places, counts = torch.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    ranks = (last - (counts - 1) / 2.0)[places]
    return ranks - ranks.mean()


Scores = dict[str, float]


class Task(nn.Module, ABC):
    """Turns labels into targets, and logits and targets into a loss and metrics. B rows, N documents of a row.

    Metrics are computed from sums over examples, which add up exactly over batches and processes.
    """

    default_metric: ClassVar[str]
    """The default metric of early stopping and tables; larger is better."""
    max_length: int | None = None
    """Tokens of the longest text, where a model stays with what it was trained on; None: what the encoder takes."""

    @property
    @abstractmethod
    def num_outputs(self) -> int:
        """Logits of an example."""

    @property
    @abstractmethod
    def num_figures(self) -> int:
        """The number of further sums, beside loss and count, for the metrics."""

    def choose_metric(self, examples: Sequence[Any]) -> str:
        """The default metric of early stopping for these held-out examples."""
        return self.default_metric

    def check_examples(self, examples: Sequence[Any]) -> None:
        """Raise an `InputError` for unknown labels, before tokenizing."""
        self.encode_targets(examples)

    @abstractmethod
    def encode_targets(self, examples: Sequence[Any]) -> Tensor:
        """The targets, one row for each example that has tokens."""

    def read_labels(self, labels: Tensor) -> Tensor:
        """Targets (B, 1, ...) from labels given with a padded batch, as in transformers."""
        return labels[:, None]

    def arrange(self, logits: Tensor, batch: PackedBatch, targets: Tensor) -> Tensor:
        """Arrange logits like targets (B, N, ...): (B, N, ..., C). By default they already are, (B, N, C)."""
        return logits

    @abstractmethod
    def loss_sums(self, logits: Tensor, targets: Tensor) -> LossSums:
        """The loss and the figures of arranged logits, summed over all targets."""

    def condense(self, logits: Tensor) -> Tensor:
        """What is kept of arranged logits for the final scores and pictures: (B, N, ...), with a fixed shape."""
        return logits

    @abstractmethod
    def compute_metrics(self, sums: Sequence[float]) -> Scores:
        """From the sums of losses, counts and figures; `loss` comes first, NaN without a count."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """The labels for config.json, under Hugging Face's names."""

    @abstractmethod
    def describe_labels(self, targets: Tensor) -> str:
        """A short description of the targets' labels, for the user to check."""

    def read_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Called once before training, with the tokenizer of the examples."""

    def follow(self, progress: float) -> None:
        """Called before each step with the progress of the run, in [0, 1]."""

    def prepare_head(self, output: nn.Linear, targets: Tensor) -> None:
        """Initialise a new head's last layer, before training."""

    def score_answers(self, answers: Tensor, targets: Tensor, examples: Sequence[Any]) -> Scores:
        """Metrics that need all condensed answers at once, one row for each example, for the final evaluation."""
        return {}

    def score_classes(self, sums: Sequence[float]) -> Mapping[str, Scores]:
        """Scores of each class, where there are classes."""
        return {}


class OneClassTask(Task):
    """One of several classes for each target, by cross-entropy, with optional class weights.

    The mean is over targets, whatever their weights. C classes.
    """

    class_weights: Tensor | None

    def __init__(
        self, classes: Sequence[str], class_weights: Sequence[float] | None = None, label_smoothing: float = 0.0
    ) -> None:
        super().__init__()
        self.classes = tuple(classes)
        self.label_smoothing = label_smoothing
        weights = None if class_weights is None else torch.tensor(class_weights)
        self.register_buffer("class_weights", weights, persistent=False)

    @classmethod
    def from_description(cls, config: Mapping[str, Any]) -> Self:
        return cls(read_classes(config))

    @property
    def num_outputs(self) -> int:
        return len(self.classes)

    def sum_cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy of logits (..., C) with class indices (...)."""
        return F.cross_entropy(
            logits.float().flatten(0, -2),
            targets.flatten(),
            weight=self.class_weights,
            reduction="sum",
            ignore_index=IGNORED_LABEL,
            label_smoothing=self.label_smoothing,
        )
