"""Text embeddings trained on pairs, by the contrastive loss or by labels for their cosine.

B rows, N documents of a row, R examples, G texts of an example (two that belong together, perhaps a hard negative), D
width.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maskwright.batch import PackedBatch
from maskwright.errors import InputError
from maskwright.models.files.model_folder import OWN_KEY, read_own_settings
from maskwright.objectives.loss import LossSums
from maskwright.suggestions import suggest
from maskwright.tasks.config import TaskConfig
from maskwright.tasks.heads import SETTINGS_PART, Pooling, check_pooling
from maskwright.tasks.sequence.regression import Regression
from maskwright.tasks.similarity.contrastive import Groups, compute_contrastive_losses
from maskwright.tasks.similarity.examples import (
    CONTRASTIVE,
    COSINE,
    LOSSES,
    GroupFeatures,
    SimilarityExample,
    featurize_groups,
)
from maskwright.tasks.task import Scores, Task, compute_pearson, compute_spearman
from maskwright.text.tokenizer.tokenizer import Tokenizer

_NOT_OF_TEXTS = 2
"""Columns of a target before the numbers of the texts: whether the pair is asked, and its label."""
_HASH_BYTES = 6
"""Few enough for a float64 to hold the number exactly."""
_PAIR = 2
DEFAULT_POOLING: Pooling = "mean"
DEFAULT_TEMPERATURE = 0.05
_FEWEST = 2


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
                *map(number_text, example.texts),
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


def number_text(text: str) -> float:
    """A number for a text; the same for texts that differ only in case and spaces."""
    content = " ".join(text.casefold().split()).encode()
    return float(int.from_bytes(hashlib.blake2b(content, digest_size=_HASH_BYTES).digest()))


def _sum_moments(cosines: Tensor, labels: Tensor) -> Tensor:
    """(6,) the number of labels, and the sums of cosines, labels, their squares and products."""
    is_labelled = ~labels.isnan()
    x, y = torch.where(is_labelled, cosines.double(), 0.0), torch.where(is_labelled, labels, 0.0)
    return torch.stack([one.sum() for one in (is_labelled.double(), x, y, x * x, y * y, x * y)])


class CosineSimilarity(Regression):
    """The squared difference between the cosine of two texts and their label, scaled to the range of a cosine."""

    def __init__(self, pooling: Pooling, scale: tuple[float, float], max_length: int | None) -> None:
        super().__init__()
        self.pooling: Pooling = pooling
        self.scale = scale
        self.max_length = max_length

    def encode_targets(self, examples: Sequence[Any]) -> Tensor:
        low, high = self.scale
        return torch.tensor([((example.label or 0.0) - low) / (high - low) for example in examples])

    def read_labels(self, labels: Tensor) -> Tensor:
        raise refuse_single_texts()

    def arrange(self, logits: Tensor, batch: PackedBatch, targets: Tensor) -> Tensor:
        """(B, N, 1) the cosine of each example, at each of its documents."""
        return compute_cosines(group_vectors(logits, _PAIR))

    def describe(self) -> dict[str, Any]:
        settings = {"loss": COSINE, "pooling": self.pooling, "scale": list(self.scale), "max_length": self.max_length}
        return {OWN_KEY: {SETTINGS_PART: settings}}

    def describe_labels(self, targets: Tensor) -> str:
        low, high = self.scale
        scaled = "taken as cosines" if self.scale == (0.0, 1.0) else f"{low:g} to {high:g} scaled to cosines of 0 to 1"
        return f"{scaled}, mean {targets.mean():.3g}"


def find_scale(labels: Sequence[float]) -> tuple[float, float]:
    """The labels that mean cosines of 0 and 1; labels in the range of a cosine are not scaled."""
    low, high = min(labels), max(labels)
    if low >= -1.0 and high <= 1.0:
        return 0.0, 1.0
    return float(math.floor(low)), float(math.ceil(high))


def build_similarity(examples: Sequence[SimilarityExample], config: TaskConfig) -> Task:
    """The task for these settings and training examples."""
    for name, is_set in (("class-weights", config.class_weights), ("label-smoothing", config.label_smoothing)):
        if is_set:
            raise InputError(f"--{name} is for classes; similarity has none: leave it out")
    loss = config.loss or CONTRASTIVE
    if loss not in LOSSES:
        raise InputError(f"there is no loss '{loss}' for similarity{suggest(loss, LOSSES)}")
    pooling = check_pooling(config.pooling or DEFAULT_POOLING)
    if loss == CONTRASTIVE:
        if config.batch_size < _FEWEST:
            raise InputError("--batch-size is 1, which leaves the contrastive loss nothing to compare with; raise it")
        return ContrastiveSimilarity(pooling, config.temperature or DEFAULT_TEMPERATURE, config.max_length)
    for option in ("temperature", "negative_column"):
        if getattr(config, option) is not None:
            raise InputError(f"--{option.replace('_', '-')} is for --loss contrastive, not cosine; leave it out")
    labels = [example.label for example in examples if example.label is not None]
    if len(set(labels)) < _FEWEST:
        raise InputError(f"all pairs of {config.train} have the label {labels[0]:g}; there is nothing to learn")
    return CosineSimilarity(pooling, find_scale(labels), config.max_length)


def load_similarity(config: Mapping[str, Any]) -> Task:
    """The task of a saved model, from its config.json."""
    settings = read_own_settings(config, SETTINGS_PART)
    pooling, max_length = check_pooling(str(settings.get("pooling"))), settings.get("max_length")
    if settings.get("loss") == COSINE:
        low, high = settings["scale"]
        return CosineSimilarity(pooling, (float(low), float(high)), max_length)
    return ContrastiveSimilarity(pooling, float(settings.get("temperature", DEFAULT_TEMPERATURE)), max_length)


def featurize_similarity(
    examples: Sequence[SimilarityExample], tokenizer: Tokenizer, max_length: int, config: TaskConfig
) -> GroupFeatures:
    return featurize_groups(examples, tokenizer, max_length, are_compared=config.loss != COSINE)


def group_vectors(vectors: Tensor, size: int) -> Tensor:
    """(B, N, G, D) of (B, N, D): at each document all texts of its example, of length 1."""
    return F.normalize(vectors, dim=-1).unflatten(1, (-1, size)).repeat_interleave(size, dim=1)


def compute_cosines(groups: Tensor) -> Tensor:
    """(..., 1) the cosine of the first two texts of (..., G, D)."""
    return (groups[..., 0, :] * groups[..., 1, :]).sum(-1, keepdim=True)


def refuse_single_texts() -> InputError:
    return InputError(
        "the loss of similarity is one of pairs, not of single texts; train it on batches of a GroupLoader"
    )
