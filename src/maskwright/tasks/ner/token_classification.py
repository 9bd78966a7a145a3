"""A class for each word, and the entities that they spell.

B rows, S row length, N documents of a row, W words of a document, C classes.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from maskwright.batch import IGNORED_LABEL, PackedBatch, fill_missing, find_asked
from maskwright.errors import InputWarning
from maskwright.objectives.loss import LossSums
from maskwright.tasks.config import TaskConfig
from maskwright.tasks.labels import find_class, list_names, number_classes
from maskwright.tasks.ner.entity_counts import EntityCounter
from maskwright.tasks.ner.entity_scores import compute_entity_scores
from maskwright.tasks.ner.features import TaggedDocument
from maskwright.tasks.ner.schemes import list_classes
from maskwright.tasks.ner.tagged_sentences import TaggedSentence
from maskwright.tasks.pooling import pool
from maskwright.tasks.scores import compute_f1, compute_macro_f1
from maskwright.tasks.sequence.class_weights import weigh_classes
from maskwright.tasks.sequence.classification import score_each
from maskwright.tasks.task import OneClassTask, Scores


class TokenClassification(OneClassTask):
    """Asked about the first piece of each word."""

    default_metric = "f1"

    def __init__(
        self, classes: Sequence[str], class_weights: Sequence[float] | None = None, label_smoothing: float = 0.0
    ) -> None:
        super().__init__(classes, class_weights, label_smoothing)
        self.counter = EntityCounter(classes)

    @classmethod
    def from_examples(cls, examples: Sequence[TaggedSentence], config: TaskConfig) -> TokenClassification:
        """All tags that the types of the training examples have in their scheme, also those that no word has."""
        counts = Counter(str(tag) for example in examples for tag in example.tags)
        classes = list_classes(tag for example in examples for tag in set(example.tags))
        weights = None
        if config.class_weights is not None:
            weights = weigh_classes(config.class_weights, {name: max(counts[name], 1) for name in classes})
        return cls(classes, weights, config.label_smoothing)

    @property
    def num_figures(self) -> int:
        """Hits, predictions and actual entities of each type, and words with the right class."""
        return 3 * len(self.counter.types) + 1

    def check_examples(self, examples: Sequence[TaggedSentence]) -> None:
        for example in examples:
            self._number(example)

    def encode_targets(self, examples: Sequence[TaggedDocument]) -> Tensor:
        """(examples, W, 2): the place of each word's first token in its document, and the word's class."""
        num_words = max(len(example.places) for example in examples)
        targets = fill_missing((len(examples), num_words, 2), torch.int32)
        for row, example in zip(targets, examples, strict=True):
            row[: len(example.places)] = torch.tensor([example.places, self._number(example.sentence)]).T
        return targets

    def _number(self, example: TaggedSentence) -> list[int]:
        numbers = {name: number for number, name in enumerate(self.classes)}
        return [find_class(numbers, str(tag), example.place_of(word)) for word, tag in enumerate(example.tags)]

    def read_labels(self, labels: Tensor) -> Tensor:
        """(B, 1, S, 2) of labels (B, S), those that are there moved to the front."""
        places = (labels == IGNORED_LABEL).long().argsort(dim=1, stable=True)
        classes = labels.gather(1, places)
        return torch.stack([places.masked_fill(classes == IGNORED_LABEL, IGNORED_LABEL), classes], dim=-1)[:, None]

    def arrange(self, logits: Tensor, batch: PackedBatch, targets: Tensor) -> Tensor:
        """(B, N, W, C) of tokens' logits (B, S, C)."""
        num_documents, num_words = targets.shape[1:3]
        places = torch.arange(logits.shape[1], device=logits.device).expand(len(logits), -1)
        starts = pool(places[..., None], batch, num_documents, "cls")
        chosen = (starts + targets[..., 0].long().clamp(min=0)).flatten(1)
        arranged = logits.gather(1, chosen[..., None].expand(-1, -1, logits.shape[-1]))
        return arranged.unflatten(1, (num_documents, num_words))

    def loss_sums(self, logits: Tensor, targets: Tensor) -> LossSums:
        """Logits (B, N, W, C) against targets (B, N, W, 2)."""
        is_asked, wanted = find_asked(targets), targets[..., 1].long()
        loss = self.sum_cross_entropy(logits, wanted)
        with torch.no_grad():
            predicted = logits.argmax(-1)
            entities = self.counter(predicted, wanted, is_asked).flatten()
            num_right = ((predicted == wanted) & is_asked).sum()
        return LossSums(loss[None], is_asked.sum()[None], torch.cat([entities, num_right[None]]))

    def condense(self, logits: Tensor) -> Tensor:
        """(B, N, W) the class of each word."""
        return logits.argmax(-1)

    def compute_metrics(self, sums: Sequence[float]) -> Scores:
        loss_sum, count, *entities, num_right = sums
        size, num_words = len(self.counter.types), count or float("nan")
        hits, predicted, actual = entities[:size], entities[size : 2 * size], entities[2 * size :]
        return {
            "loss": loss_sum / num_words,
            "accuracy": num_right / num_words,
            "f1": compute_f1(sum(hits), sum(predicted), sum(actual)),
            "precision": sum(hits) / sum(predicted) if sum(predicted) else 0.0,
            "recall": sum(hits) / sum(actual) if sum(actual) else 0.0,
            "macro_f1": compute_macro_f1(hits, predicted, actual),
        }

    def score_classes(self, sums: Sequence[float]) -> dict[str, Scores]:
        """Of each type of entity."""
        return score_each(self.counter.types, sums[2:-1])

    def score_answers(self, answers: Tensor, targets: Tensor, examples: Sequence[TaggedDocument]) -> Scores:
        """What nervaluate adds, where it is installed."""
        is_asked = find_asked(targets[None])[0]
        wanted, found = targets[..., 1].long(), answers.long()
        actual, predicted = (self.counter.list_entities(one, is_asked) for one in (wanted, found))
        try:
            return compute_entity_scores(actual, predicted, self.counter.types)
        except ImportError:
            warnings.warn(
                "no scores for entities found in part: they need an extra, pip install 'maskwright[eval]'",
                InputWarning,
                stacklevel=2,
            )
            return {}

    def describe(self) -> dict[str, Any]:
        return number_classes(self.classes)

    def describe_labels(self, targets: Tensor) -> str:
        """How many entities of each type there are."""
        entities = self.counter.list_entities(targets[..., 1].long(), find_asked(targets[None])[0])
        counts = Counter(entity.type for row in entities for entity in row)
        return f"{list_names([f'{name} {counts[name]:,}' for name in self.counter.types])} entities"
