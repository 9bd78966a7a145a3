"""Rerankers: a query and a document are read together, and one number says how well the document answers.

The head is that of a family's ...ForSequenceClassification with one output, as sentence-transformers' CrossEncoder. B
rows, N documents of a row, G documents of a query.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskwright.batch import PackedBatch, find_asked
from maskwright.errors import InputError
from maskwright.objectives.loss import LossSums
from maskwright.suggestions import name_option, suggest
from maskwright.tasks.config import TaskConfig
from maskwright.tasks.examples import Example
from maskwright.tasks.features import featurize
from maskwright.tasks.retrieval.examples import RetrievalExample, RetrievalFile, read_retrieval
from maskwright.tasks.sequence.regression import Regression
from maskwright.tasks.similarity.examples import CONTRASTIVE, GroupFeatures, GroupLoader
from maskwright.tasks.tables import Table
from maskwright.tasks.task import Scores, Task
from maskwright.text.tokenizer.tokenizer import Tokenizer

BCE, MSE = "bce", "mse"
LOSSES = (CONTRASTIVE, BCE, MSE)
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
    examples: list[Any]
    """One of each query; where its documents are not compared, one of each document, with its label or score."""

    @property
    def path(self) -> Path:
        return self.source.path

    def describe(self) -> str:
        drawn = self.source.num_drawn
        tail = f"; {drawn:,} negatives of all were drawn from other queries" if drawn else ""
        is_grouped = isinstance(self.examples[0], RetrievalExample)
        what = "queries with their documents" if is_grouped else "pairs of a query and a document"
        return f"{len(self.examples):,} {what} of {self.path}{tail}"

    def check_same_form(self, other: RerankFile) -> None:
        """Nothing is refused: held-out queries may have more documents, or fewer."""


def read_rerank(source: str | Path | Table, config: TaskConfig) -> RerankFile:
    """Every query with its documents; without hard negatives those of other queries are drawn."""
    loss = _read_loss(config)
    file = read_retrieval(source, config, loss == MSE, draws_negatives=True)
    if loss == CONTRASTIVE and not file.num_negatives:
        raise InputError(
            f"{name_option('num_negatives')} is 0, which leaves a document nothing to be told from; raise it"
        )
    if loss == CONTRASTIVE:
        return RerankFile(file, file.examples)
    examples = [
        Example(one.place, one.texts[0], text, label)
        for one in file.examples
        for text, label in zip(one.texts[1:], one.scores or (1.0, *[0.0] * file.num_negatives), strict=True)
    ]
    return RerankFile(file, examples)


def _read_loss(config: TaskConfig) -> str:
    loss = config.loss or CONTRASTIVE
    if loss not in LOSSES:
        raise InputError(f"there is no loss '{loss}' for rerank{suggest(loss, LOSSES)}")
    return loss


def build_rerank(examples: Sequence[Example], config: TaskConfig) -> Task:
    """The task for these settings and training examples."""
    for name, is_set in (("class-weights", config.class_weights), ("label-smoothing", config.label_smoothing)):
        if is_set:
            raise InputError(f"--{name} is for classes; rerank has none: leave it out")
    return {CONTRASTIVE: ListReranking, BCE: Reranking, MSE: ScoreReranking}[_read_loss(config)]()


def featurize_rerank(
    examples: Sequence[Any], tokenizer: Tokenizer, max_length: int, config: TaskConfig
) -> GroupFeatures:
    """Pairs of a query and a document, those of a query after each other where they are compared.

    A query of which a document has no tokens is dropped whole.
    """
    is_grouped = _read_loss(config) == CONTRASTIVE
    size = len(examples[0].texts) - 1 if is_grouped else 1
    pairs = [pair for one in examples for pair in _list_pairs(one)] if is_grouped else list(examples)
    found = featurize(pairs, tokenizer, max_length)
    whole = list(examples)
    if found.num_empty:
        kept = {id(one) for one in found.examples}
        groups = [pairs[start : start + size] for start in range(0, len(pairs), size)]
        chosen = [number for number, group in enumerate(groups) if all(id(one) in kept for one in group)]
        if not chosen:
            raise InputError(
                f"no query up to {examples[-1].place} has tokens in all of its documents; check the columns"
            )
        whole = [examples[number] for number in chosen]
        found = featurize([one for number in chosen for one in groups[number]], tokenizer, max_length)
    return GroupFeatures(found.store, whole, found.num_cut, len(examples) - len(whole), group_size=size)


def _list_pairs(example: RetrievalExample) -> list[Example]:
    return [Example(example.place, example.text, text, None) for text in example.texts[1:]]


class RerankLoader(GroupLoader):
    """As many pairs in a step, whether those of a query are compared or not."""

    def __init__(
        self, features: GroupFeatures, targets: Tensor, tokenizer: Tokenizer, *, batch_size: int, **options: Any
    ) -> None:
        num_groups = max(1, batch_size // features.group_size)
        super().__init__(features, targets, tokenizer, batch_size=num_groups, **options)


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


class ListReranking(ScoreReranking):
    """The document that answers is told from the query's others, by the softmax of their numbers (Gao et al. 2021)."""

    default_metric = "accuracy"
    num_figures = 1
    """Queries whose document comes first."""

    def encode_targets(self, examples: Sequence[Any]) -> Tensor:
        """(examples, G): 1 for the document that answers, which is the first."""
        targets = torch.zeros(len(examples), len(examples[0].texts) - 1)
        targets[:, 0] = 1.0
        return targets

    def arrange(self, logits: Tensor, batch: PackedBatch, targets: Tensor) -> Tensor:
        """(B, N, G) the numbers of each query's documents, at each of them."""
        size = targets.shape[-1]
        return logits[..., 0].unflatten(1, (-1, size)).repeat_interleave(size, dim=1)

    def loss_sums(self, logits: Tensor, targets: Tensor) -> LossSums:
        """Sums over documents, each of which stands for its query."""
        size = targets.shape[-1]
        answers, is_asked = logits[:, ::size].float(), find_asked(targets)[:, ::size]
        losses = -answers.log_softmax(-1)[..., 0]
        loss = losses.masked_fill(~is_asked, 0.0).sum()
        hits = ((answers[..., :1] > answers[..., 1:]).all(-1) & is_asked).sum().double()
        return LossSums(size * loss[None], size * is_asked.sum()[None], size * hits[None])

    def compute_metrics(self, sums: Sequence[float]) -> Scores:
        loss_sum, count, num_hits = sums
        return {"loss": loss_sum / (count or math.nan), "accuracy": num_hits / (count or math.nan)}

    def score_answers(self, answers: Tensor, targets: Tensor, examples: Sequence[Any]) -> Scores:
        """The reciprocal rank of the document that answers, among those of its query; the last of equal ones."""
        ranks = 1 + (answers[:, 1:] >= answers[:, :1]).sum(-1)
        return {f"mrr@{_MRR_AT}": float(torch.where(ranks <= _MRR_AT, 1.0 / ranks, 0.0).mean())}

    def prepare_head(self, output: nn.Linear, targets: Tensor) -> None:
        """What is added to all numbers of a query changes nothing: the bias stays as it is."""

    def describe_labels(self, targets: Tensor) -> str:
        return f"{len(targets):,} queries, each with a document that answers and {targets.shape[1] - 1} that do not"
