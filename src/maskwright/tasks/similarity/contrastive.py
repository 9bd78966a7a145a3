"""Vectors by which a text finds its partner among the other texts of a batch.

B rows, N documents of a row, G texts of an example, D width.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from maskwright.batch import PackedBatch
from maskwright.models.files.model_folder import OWN_KEY
from maskwright.objectives.loss import LossSums
from maskwright.tasks.pooling import Pooling
from maskwright.tasks.scores import compute_pearson, compute_spearman
from maskwright.tasks.similarity.embedding_head import SETTINGS_PART
from maskwright.tasks.similarity.examples import CONTRASTIVE, SimilarityExample
from maskwright.tasks.similarity.losses import Groups, compute_contrastive_losses
from maskwright.tasks.similarity.pair_vectors import compute_cosines, group_vectors, refuse_single_texts
from maskwright.tasks.task import Scores, Task

_NOT_OF_TEXTS = 2
"""Columns of a target before the numbers of the texts: whether the pair is asked, and its label."""
_HASH_BYTES = 6
"""So few that a double holds the number exactly."""


class ContrastiveSimilarity(Task):
    """The partner of a text is told from the other texts of its batch; labels of held-out pairs judge the cosines."""

    default_metric = "accuracy"
    num_outputs = 1
    num_figures = 7
    """Right answers, then the number of labelled examples and the moments of cosines and labels."""

    def __init__(self, pooling: Pooling, temperature: float, max_length: int | None) -> None:
        super().__init__()
        self.pooling: Pooling = pooling
        self.temperature = temperature
        self.max_length = max_length

    def choose_metric(self, examples: Sequence[SimilarityExample]) -> str:
        """Labels say more than right answers do, where there are some that differ."""
        return "pearson" if len({example.label for example in examples}) > 1 else self.default_metric

    def encode_targets(self, examples: Sequence[SimilarityExample]) -> Tensor:
        """(examples, 2 + G): NaN where the texts do not belong together, the label or NaN, a number for each text."""
        rows = [
            [
                1.0 if example.belongs else math.nan,
                math.nan if example.label is None else example.label,
                *map(_number_text, example.texts),
            ]
            for example in examples
        ]
        return torch.tensor(rows, dtype=torch.float64)

    def read_labels(self, labels: Tensor) -> Tensor:
        raise refuse_single_texts()

    def arrange(self, logits: Tensor, batch: PackedBatch, targets: Tensor) -> Tensor:
        """(B, N, G, D) the vectors of each example, at each of its documents."""
        return group_vectors(logits, targets.shape[-1] - _NOT_OF_TEXTS)

    def loss_sums(self, logits: Tensor, targets: Tensor) -> LossSums:
        size = logits.shape[2]
        vectors, targets = logits[:, ::size].flatten(0, 1), targets[:, ::size].flatten(0, 1)
        is_asked = ~targets[:, 0].isnan()
        with torch.autocast(logits.device.type, enabled=False):
            groups = Groups(vectors, targets[:, _NOT_OF_TEXTS:], is_asked)
            losses, hits = compute_contrastive_losses(groups, self.temperature)
        loss = torch.where(is_asked, losses, 0.0).sum()
        with torch.no_grad():
            num_hits = (hits & is_asked).sum().double()
            moments = _sum_moments(compute_cosines(vectors)[:, 0], targets[:, 1])
            figures = torch.cat([num_hits[None], moments])
        return LossSums(size * loss[None], size * is_asked.sum()[None], size * figures)

    def condense(self, logits: Tensor) -> Tensor:
        """(B, N, 1) cosines."""
        return compute_cosines(logits)

    def compute_metrics(self, sums: Sequence[float]) -> Scores:
        loss_sum, count, num_hits, num_labelled, *moments = sums
        num_asked = count or math.nan
        return {
            "loss": loss_sum / num_asked,
            "accuracy": num_hits / num_asked,
            "pearson": compute_pearson(num_labelled, moments),
        }

    def score_answers(self, answers: Tensor, targets: Tensor, examples: Sequence[SimilarityExample]) -> Scores:
        is_labelled = ~targets[:, 1].isnan()
        if not is_labelled.any():
            return {}
        return {"spearman": compute_spearman(answers[is_labelled, 0], targets[is_labelled, 1])}

    def describe(self) -> dict[str, Any]:
        settings = {
            "loss": CONTRASTIVE,
            "pooling": self.pooling,
            "temperature": self.temperature,
            "max_length": self.max_length,
        }
        return {OWN_KEY: {SETTINGS_PART: settings}}

    def describe_labels(self, targets: Tensor) -> str:
        return f"{len(targets):,} pairs that belong together, each against the other pairs of its batch"


def _number_text(text: str) -> float:
    """The same for texts that differ in case and spaces alone."""
    content = " ".join(text.casefold().split()).encode()
    return float(int.from_bytes(hashlib.blake2b(content, digest_size=_HASH_BYTES).digest()))


def _sum_moments(cosines: Tensor, labels: Tensor) -> Tensor:
    """(6,) the number of labels, and the sums of cosines, labels, their squares and products."""
    is_labelled = ~labels.isnan()
    x, y = torch.where(is_labelled, cosines.double(), 0.0), torch.where(is_labelled, labels, 0.0)
    return torch.stack([one.sum() for one in (is_labelled.double(), x, y, x * x, y * y, x * y)])
