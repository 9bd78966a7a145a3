"""What is asked of examples and how answers are scored: the part of a model that knows its labels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from maskwright.objectives.loss import LossSums
from maskwright.tasks.examples import Example

Scores = dict[str, float]


class Task(nn.Module, ABC):
    """Turns labels into targets, and logits and targets into a loss and metrics.

    Metrics are computed from sums over examples, which add up exactly over batches and processes.
    """

    default_metric: ClassVar[str]
    """What early stopping watches and tables show, unless another is chosen; larger is better."""

    @property
    @abstractmethod
    def num_outputs(self) -> int:
        """Logits of an example."""

    @property
    @abstractmethod
    def num_figures(self) -> int:
        """Sums beside loss and count that the metrics are computed from."""

    @abstractmethod
    def encode_targets(self, examples: Sequence[Example]) -> Tensor:
        """What the model must answer, one row for each example; labels it cannot know are an `InputError`."""

    @abstractmethod
    def loss_sums(self, logits: Tensor, targets: Tensor) -> LossSums:
        """The loss and the figures, summed over what is asked."""

    @abstractmethod
    def compute_metrics(self, sums: Sequence[float]) -> Scores:
        """From the sums of losses, counts and figures; `loss` comes first, NaN without a count."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What config.json says of the labels, in Hugging Face's words."""

    @abstractmethod
    def describe_labels(self, targets: Tensor) -> str:
        """The labels of some targets in a few words, for the user to check."""

    def prepare_head(self, output: nn.Linear, targets: Tensor) -> None:
        """Set a new head's last layer to what is known before training."""

    def score_predictions(self, logits: Tensor, targets: Tensor) -> Scores:
        """Metrics that need all answers at once, for the final evaluation."""
        return {}

    def score_classes(self, sums: Sequence[float]) -> Mapping[str, Scores]:
        """Scores of each class, where there are classes."""
        return {}
