"""Entities found, predicted and actual, counted on tensors without waiting for the device.

W words of a row, C classes, T types of entities.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskwright.errors import InputError
from maskwright.tasks.ner.tagging import Entity, read_classes_as_tags


class _Marks(NamedTuple):
    """Where entities begin, (..., W), with their type and their last word."""

    starts: Tensor
    types: Tensor
    lasts: Tensor


class EntityCounter(nn.Module):
    """Reads rows of classes as entities, by the rules of `tagging.goes_on`."""

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
