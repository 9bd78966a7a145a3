"""Vectors of queries and documents, trained so that a query is nearest to the document that answers it.

Losses: contrastive over the batch with hard negatives; or a teacher's scores of an example's documents, by the margins
between them (Hofstätter et al. 2020) or by their distribution. Prefixes of the vectors can be trained to be vectors
themselves (Kusupati et al. 2022, Matryoshka). B rows, N documents of a row, R examples, G texts of an example (a query,
a document that answers it, others), D width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maskwright.batch import PackedBatch
from maskwright.errors import InputError
from maskwright.models.files.model_folder import OWN_KEY
from maskwright.objectives.loss import LossSums
from maskwright.tasks.heads import RETRIEVAL_PART, SETTINGS_PART, Pooling
from maskwright.tasks.retrieval.examples import RetrievalExample
from maskwright.tasks.retrieval.settings import MARGIN_MSE, RetrievalSettings
from maskwright.tasks.similarity.contrastive import Groups, compute_contrastive_losses
from maskwright.tasks.similarity.examples import CONTRASTIVE
from maskwright.tasks.similarity.text_similarity import group_vectors, number_text
from maskwright.tasks.task import Scores, Task

MRR_AT = 10
PREFIX_SCORE = " of "
"""Between the name of a score and the length of the prefix of vectors that it is of."""


class DenseRetrieval(Task):
    """The document of a query is told from those of the batch, or documents are scored as a teacher scores them."""

    default_metric = "accuracy"
    num_outputs = 1
    num_figures = 1
    """Queries whose document comes first."""

    def __init__(self, pooling: Pooling, settings: RetrievalSettings, max_length: int | None) -> None:
        super().__init__()
        self.pooling: Pooling = pooling
        self.settings = settings
        self.max_length = max_length

    def encode_targets(self, examples: Sequence[RetrievalExample]) -> Tensor:
        """(examples, 1 + G): that there is an example, and a number for each text; then a score of each document."""
        rows = [
            [1.0, *map(number_text, one.texts), *(one.scores or () if self.settings.learns_scores else ())]
            for one in examples
        ]
        return torch.tensor(rows, dtype=torch.float64)

    def read_labels(self, labels: Tensor) -> Tensor:
        raise InputError("the loss of retrieval is one of queries with documents; train it on batches of a GroupLoader")

    def arrange(self, logits: Tensor, batch: PackedBatch, targets: Tensor) -> Tensor:
        """(B, N, G, D) the vectors of each example, at each of its documents."""
        return group_vectors(logits, self._count_texts(targets))

    def _count_texts(self, targets: Tensor) -> int:
        num_columns = targets.shape[-1]
        return num_columns // 2 if self.settings.learns_scores else num_columns - 1

    def loss_sums(self, logits: Tensor, targets: Tensor) -> LossSums:
        vectors, targets = self._list_examples(logits, targets)
        is_asked = ~targets[:, 0].isnan()
        widths = [width for width in self.settings.dims if width < vectors.shape[-1]]
        with torch.autocast(logits.device.type, enabled=False):
            prefixes = [vectors, *(F.normalize(vectors[..., :width], dim=-1) for width in widths)]
            computed = [self._compute_losses(one, targets, is_asked) for one in prefixes]
        losses = torch.stack([losses for losses, _ in computed]).mean(0)
        loss = torch.where(is_asked, losses, 0.0).sum()
        num_hits = (computed[0][1] & is_asked).sum().double()
        return self._weigh(loss, is_asked.sum(), num_hits[None], vectors.shape[1])

    def _list_examples(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """(R, G, D) vectors and (R, ...) targets of arranged logits."""
        size = logits.shape[2]
        return logits[:, ::size].flatten(0, 1), targets[:, ::size].flatten(0, 1)

    def _weigh(self, loss: Tensor, count: Tensor, figures: Tensor, size: int) -> LossSums:
        """Sums over documents, each of which stands for its example."""
        return LossSums(size * loss[None], size * count[None], size * figures)

    def _compute_losses(self, vectors: Tensor, targets: Tensor, is_asked: Tensor) -> tuple[Tensor, Tensor]:
        """(R,) the loss of each example, and whether the document of its query comes first."""
        settings, size = self.settings, vectors.shape[1]
        if not settings.learns_scores:
            groups = Groups(vectors, targets[:, 1 : 1 + size], is_asked)
            return compute_contrastive_losses(
                groups,
                settings.temperature,
                is_symmetric=settings.symmetric,
                false_negative_margin=settings.false_negative_margin,
                score=self.score,
            )
        scores = self.score_own(vectors) / settings.temperature
        taught = targets[:, 1 + size :].nan_to_num().to(scores.dtype)
        hits = scores.argmax(-1) == 0
        if settings.loss == MARGIN_MSE:
            margins, wanted = (one[:, :1] - one[:, 1:] for one in (scores, taught))
            return (margins - wanted).square().mean(-1), hits
        divergence = F.kl_div(scores.log_softmax(-1), taught.log_softmax(-1), reduction="none", log_target=True)
        return divergence.sum(-1), hits

    def score(self, queries: Tensor, documents: Tensor) -> Tensor:
        """(Q, N) of queries (Q, D) with documents (N, D)."""
        return queries @ documents.T

    def score_own(self, vectors: Tensor) -> Tensor:
        """(R, G - 1) of queries with the documents of their own examples."""
        return (vectors[:, :1] * vectors[:, 1:]).sum(-1)

    def condense(self, logits: Tensor) -> Tensor:
        """(B, N, 2, D) the vectors of the query and of its document."""
        return logits[:, :, :2]

    def compute_metrics(self, sums: Sequence[float]) -> Scores:
        loss_sum, count, num_hits = sums
        num_asked = count or math.nan
        return {"loss": loss_sum / num_asked, "accuracy": num_hits / num_asked}

    def score_answers(self, answers: Tensor, targets: Tensor, examples: Sequence[RetrievalExample]) -> Scores:
        """The reciprocal rank of each example's document among all held-out ones that do not answer its query.

        By whole vectors, and by each prefix that is trained to be a vector.
        """
        queries, numbers = targets[:, 1], targets[:, 2]
        _, first = torch.unique(numbers, return_inverse=True)
        places = torch.zeros(int(first.max()) + 1, dtype=torch.long).scatter_(0, first, torch.arange(len(first)))
        documents = answers[places, 1]
        _, query_ids = torch.unique(queries, return_inverse=True)
        by_query = torch.zeros(int(query_ids.max()) + 1, len(places), dtype=torch.bool)
        by_query[query_ids, first] = True
        answers_query = by_query[query_ids]
        widths = [None, *(width for width in self.settings.dims if width < documents.shape[-1])]
        scores = {}
        for width in widths:
            cosines = F.normalize(answers[:, 0, :width], dim=-1) @ F.normalize(documents[:, :width], dim=-1).T
            own = cosines.gather(1, first[:, None])
            ranks = 1 + ((cosines > own) & ~answers_query).sum(-1)
            reciprocal = torch.where(ranks <= MRR_AT, 1.0 / ranks, 0.0)
            name = f"mrr@{MRR_AT}" if width is None else f"mrr@{MRR_AT}{PREFIX_SCORE}{width}"
            scores[name] = float(reciprocal.mean())
        return scores

    def describe(self) -> dict[str, Any]:
        """As a model for similarity, which gives the vectors, and how it was trained."""
        vectors = {
            "loss": CONTRASTIVE,
            "pooling": self.pooling,
            "temperature": self.settings.temperature,
            "max_length": self.max_length,
        }
        return {OWN_KEY: {SETTINGS_PART: vectors, RETRIEVAL_PART: self.settings.describe()}}

    def describe_labels(self, targets: Tensor) -> str:
        if self.settings.learns_scores:
            return f"a teacher's scores of {self._count_texts(targets) - 1} documents for each query"
        return f"{len(targets):,} queries, whose document is told from the others of its batch"
