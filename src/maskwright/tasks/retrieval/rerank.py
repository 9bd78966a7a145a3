"""Rerankers: a query and a document are read together, and one number says how well the document answers.

The head is that of a family's ...ForSequenceClassification with one output, as sentence-transformers' CrossEncoder.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from maskwright.batch import find_asked
from maskwright.errors import InputError
from maskwright.objectives.loss import LossSums
from maskwright.suggestions import suggest
from maskwright.tasks.config import TaskConfig
from maskwright.tasks.examples import Example
from maskwright.tasks.retrieval.examples import RetrievalFile, read_retrieval
from maskwright.tasks.sequence.regression import Regression
from maskwright.tasks.tables import Table
from maskwright.tasks.task import Scores, Task

BCE, MSE = "bce", "mse"
LOSSES = (BCE, MSE)
_MRR_AT = 10
_THEIR_SETTINGS = {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}
"""Else CrossEncoder would take the sigmoid of the number."""


def describes_reranker(config: Mapping[str, Any]) -> bool:
    """Whether a model for sequence classification says that its one number is not to be changed."""
    return len(config.get("id2label") or {}) == 1 and all(
        config.get(key) == one for key, one in _THEIR_SETTINGS.items()
    )


@dataclass(frozen=True)
class RerankFile:
    source: RetrievalFile
    examples: list[Example]
    """One of each document, with a label of 1 or 0, or with its score."""

    @property
    def path(self) -> Path:
        return self.source.path

    def describe(self) -> str:
        drawn = self.source.num_drawn
        tail = f"; {drawn:,} negatives of all were drawn from other queries" if drawn else ""
        return f"{len(self.examples):,} pairs of a query and a document of {self.path}{tail}"

    def check_same_form(self, other: RerankFile) -> None:
        """Nothing is refused: held-out queries may have more documents, or fewer."""


def read_rerank(source: str | Path | Table, config: TaskConfig) -> RerankFile:
    """Every query with its documents; without hard negatives those of other queries are drawn."""
    file = read_retrieval(source, config, _read_loss(config) == MSE, draws_negatives=True)
    examples = [
        Example(one.place, one.texts[0], text, label)
        for one in file.examples
        for text, label in zip(one.texts[1:], one.scores or (1.0, *[0.0] * file.num_negatives), strict=True)
    ]
    return RerankFile(file, examples)


def _read_loss(config: TaskConfig) -> str:
    loss = config.loss or BCE
    if loss not in LOSSES:
        raise InputError(f"there is no loss '{loss}' for rerank{suggest(loss, LOSSES)}")
    return loss


def build_rerank(examples: Sequence[Example], config: TaskConfig) -> Task:
    """The task for these settings and training examples."""
    for name, is_set in (("class-weights", config.class_weights), ("label-smoothing", config.label_smoothing)):
        if is_set:
            raise InputError(f"--{name} is for classes; rerank has none: leave it out")
    return Reranking() if _read_loss(config) == BCE else ScoreReranking()


class ScoreReranking(Regression):
    """A teacher's score of each document is learnt, by squared differences; also a saved reranker of either loss."""

    @classmethod
    def from_description(cls, config: Mapping[str, Any]) -> ScoreReranking:
        return cls()

    def describe(self) -> dict[str, Any]:
        return super().describe() | _THEIR_SETTINGS

    def describe_labels(self, targets: Tensor) -> str:
        return f"a teacher's scores, {super().describe_labels(targets)}"


class Reranking(Regression):
    """Whether a document answers, by the logistic loss of the number."""

    default_metric = "accuracy"
    num_figures = 1
    """Right answers."""

    def loss_sums(self, logits: Tensor, targets: Tensor) -> LossSums:
        """Logits (B, N, 1) against targets (B, N)."""
        is_asked = find_asked(targets)
        answers, wanted = logits.float()[..., 0], targets.masked_fill(~is_asked, 0.0)
        losses = F.binary_cross_entropy_with_logits(answers, wanted, reduction="none")
        loss = losses.masked_fill(~is_asked, 0.0).sum()
        hits = (((answers > 0) == (wanted > 0)) & is_asked).sum().double()
        return LossSums(loss[None], is_asked.sum()[None], hits[None])

    def compute_metrics(self, sums: Sequence[float]) -> Scores:
        loss_sum, count, num_hits = sums
        return {"loss": loss_sum / (count or math.nan), "accuracy": num_hits / (count or math.nan)}

    def score_answers(self, answers: Tensor, targets: Tensor, examples: Sequence[Example]) -> Scores:
        """The reciprocal rank of the first document that answers, among those of its query."""
        queries: dict[str, list[int]] = {}
        for number, one in enumerate(examples):
            queries.setdefault(one.text, []).append(number)
        total = 0.0
        for numbers in queries.values():
            scores, is_answer = answers[numbers, 0], targets[numbers] > 0
            rank = 1 + int((scores[~is_answer] > scores[is_answer].max()).sum())
            total += 1.0 / rank if rank <= _MRR_AT else 0.0
        return {f"mrr@{_MRR_AT}": total / len(queries)}

    def prepare_head(self, output: nn.Linear, targets: Tensor) -> None:
        """Initialise the bias to the share of documents that answer."""
        share = float(targets.mean().clamp(1e-3, 1 - 1e-3))
        nn.init.constant_(output.bias, math.log(share / (1 - share)))

    def describe(self) -> dict[str, Any]:
        return super().describe() | _THEIR_SETTINGS

    def describe_labels(self, targets: Tensor) -> str:
        return f"{int((targets > 0).sum()):,} of {len(targets):,} documents answer"
