"""Token classification: a class for each word, and the entities they form.

B rows, S row length, N documents of a row, W words of a document, C classes, T types of entities.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskwright.batch import IGNORED_LABEL, PackedBatch, fill_missing, find_asked
from maskwright.errors import InputError, InputWarning
from maskwright.objectives.loss import LossSums
from maskwright.tasks.config import TaskConfig
from maskwright.tasks.heads import pool
from maskwright.tasks.labels import find_class, list_names, number_classes
from maskwright.tasks.ner.examples import TaggedSentence
from maskwright.tasks.ner.features import TaggedDocument
from maskwright.tasks.ner.tags import Entity, list_classes, read_classes_as_tags
from maskwright.tasks.sequence.classification import score_each, weigh_classes
from maskwright.tasks.task import OneClassTask, Scores, compute_f1, compute_macro_f1

_NAMES = {"strict": "strict_f1", "exact": "exact_f1", "partial": "partial_f1", "ent_type": "type_f1"}


class TokenClassification(OneClassTask):
    """Named entities: predicts a class at the first token of each word."""

    default_metric = "f1"

    def __init__(
        self, classes: Sequence[str], class_weights: Sequence[float] | None = None, label_smoothing: float = 0.0
    ) -> None:
        super().__init__(classes, class_weights, label_smoothing)
        self.counter = EntityCounter(classes)

    @classmethod
    def from_examples(cls, examples: Sequence[TaggedSentence], config: TaskConfig) -> TokenClassification:
        """The task with all tags of the scheme for the types in the training examples, even tags that do not occur."""
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
        """Scores of nervaluate, if it is installed."""
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


class _Marks(NamedTuple):
    """Where entities begin, (..., W), with their type and their last word."""

    starts: Tensor
    types: Tensor
    lasts: Tensor


class EntityCounter(nn.Module):
    """Reads rows of classes as entities, by the rules of `tags.goes_on`."""

    is_inside: Tensor
    begins: Tensor
    closes: Tensor
    type_numbers: Tensor

    def __init__(self, classes: Sequence[str]) -> None:
        super().__init__()
        tags = read_classes_as_tags(classes)
        self.types = tuple(dict.fromkeys(tag.type for tag in tags if tag.is_inside))
        if not self.types:
            raise InputError(f"the classes are {', '.join(classes)}; expected at least one type of entity beside O")
        numbers = {name: number for number, name in enumerate(self.types)}
        tables = {
            "is_inside": [tag.is_inside for tag in tags],
            "begins": [tag.begins for tag in tags],
            "closes": [tag.closes for tag in tags],
            "type_numbers": [numbers.get(tag.type, 0) for tag in tags],
        }
        for name, values in tables.items():
            self.register_buffer(name, torch.tensor(values), persistent=False)

    def forward(self, predicted: Tensor, actual: Tensor, is_asked: Tensor) -> Tensor:
        """(3, T) hits, predictions and actual entities of each type, from classes (..., W) where they are asked."""
        found, wanted = self._mark(predicted, is_asked), self._mark(actual, is_asked)
        hits = found.starts & wanted.starts & (found.types == wanted.types) & (found.lasts == wanted.lasts)
        return torch.stack([self._count(*one) for one in ((hits, found.types), found[:2], wanted[:2])])

    def list_entities(self, classes: Tensor, is_asked: Tensor) -> list[list[Entity]]:
        """The entities of each row of classes (N, W); waits for the device."""
        marks = self._mark(classes, is_asked)
        entities: list[list[Entity]] = [[] for _ in classes]
        rows, places = torch.nonzero(marks.starts, as_tuple=True)
        values = (rows, places, marks.types[rows, places], marks.lasts[rows, places])
        for row, place, number, last in zip(*(value.tolist() for value in values), strict=True):
            entities[row].append(Entity(self.types[number], place, last + 1))
        return entities

    def _mark(self, classes: Tensor, is_asked: Tensor) -> _Marks:
        classes = classes.masked_fill(~is_asked, 0)
        is_inside = self.is_inside[classes] & is_asked
        types = self.type_numbers[classes]
        # What stands before the first word differs from it in being outside.
        follows = F.pad(is_inside & ~self.closes[classes], (1, 0))[..., :-1]
        has_same_type = types == F.pad(types, (1, 0))[..., :-1]
        goes_on = is_inside & follows & ~self.begins[classes] & has_same_type
        is_last = is_inside & ~F.pad(goes_on, (0, 1))[..., 1:]
        num_words = classes.shape[-1]
        places = torch.arange(num_words, device=classes.device).expand_as(classes)
        lasts = torch.where(is_last, places, num_words).flip(-1).cummin(-1).values.flip(-1)
        return _Marks(is_inside & ~goes_on, types, lasts)

    def _count(self, starts: Tensor, types: Tensor) -> Tensor:
        """(T,)"""
        return (F.one_hot(types, len(self.types)) * starts[..., None]).flatten(0, -2).sum(0)


def compute_entity_scores(
    actual: Sequence[Sequence[Entity]], predicted: Sequence[Sequence[Entity]], types: Sequence[str]
) -> Scores:
    """F1 with bounds and type right, bounds alone, bounds in part (for half), and the type alone where they overlap.

    Needs the extra `eval`.
    """
    from nervaluate.evaluator import Evaluator

    # Rows without any entity count for nothing.
    pairs = [(wanted, found) for wanted, found in zip(actual, predicted, strict=True) if wanted or found]
    if not pairs:
        return dict.fromkeys(_NAMES.values(), 0.0)
    rows = [[_describe(row) for row in side] for side in zip(*pairs, strict=True)]
    overall = Evaluator(*rows, tags=list(types), loader="dict").evaluate()["overall"]
    return {name: float(overall[theirs].f1) for theirs, name in _NAMES.items()}


def _describe(entities: Sequence[Entity]) -> list[dict[str, Any]]:
    """Their ends are the last word's place."""
    return [{"label": one.type, "start": one.start, "end": one.stop - 1} for one in entities]
