"""The names of classes, and how files write them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from maskwright.errors import InputError
from maskwright.models.files.model_folder import CONFIG_FILE
from maskwright.suggestions import name_option
from maskwright.tasks.examples import Example
from maskwright.text.tokenizer.tokenizer import refuse_half_characters

_MAX_NAMED = 12
_MOST_UNCHECKED = 20
"""Up to this many classes are accepted for any number of examples."""
_MOST_DIGITS = 18
"""Longer names are no numbers to sort by; Python refuses to read some."""
_SEPARATORS = ("|", ";", ",")


def read_label(example: Example) -> str:
    """The one class of an example."""
    if isinstance(example.label, list | dict):
        raise InputError(
            f"{example.place} has a {type(example.label).__name__} as its label; classification learns one label for"
            " each text: use multi-label"
        )
    return _spell(example.label)


def find_separator(examples: Sequence[Example]) -> str | None:
    """The separator of several labels in one field; None if no field has several."""
    fields = [example.label for example in examples if isinstance(example.label, str)]
    return next((one for one in _SEPARATORS if any(one in field for field in fields)), None)


def read_labels(example: Example, separator: str | None) -> list[str]:
    """All classes of an example, which may have none."""
    label = example.label
    if isinstance(label, list):
        if any(one is None or one != one for one in label):  # NaN differs from itself
            raise InputError(f"{example.place} has the label list {label!r:.80}, in which one is missing; take it out")
        return [_spell(one) for one in label if one != ""]
    if isinstance(label, str) and separator is not None:
        return [one.strip() for one in label.split(separator) if one.strip()]
    return [] if label == "" else [_spell(label)]


def collect_classes(labels: Sequence[str], num_examples: int, source: str) -> tuple[str, ...]:
    """The classes in their order: as numbers where all are whole numbers, else by name."""
    classes = set(labels)
    if len(classes) < 2:
        found = f"only the label '{next(iter(classes))}'" if classes else "no label at all"
        raise InputError(f"{source} has {found}; a classifier needs at least two classes to tell apart")
    numbers = [_read_number(name) for name in classes]
    if all(number is not None for number in numbers) and any(number % 1 for number in numbers if number is not None):
        raise InputError(
            f"{source} has labels such as {min(classes)}, which are measures and no classes: use regression"
        )
    if len(classes) > max(_MOST_UNCHECKED, num_examples / 2):
        raise InputError(
            f"{source} has {len(classes):,} different labels in {num_examples:,} examples, first '{min(classes)}';"
            f" choose the column of the classes with {name_option('label_column')}"
        )
    if all(name.isdecimal() and len(name) <= _MOST_DIGITS for name in classes):
        return tuple(sorted(classes, key=lambda name: (int(name), name)))
    return tuple(sorted(classes))


def number_classes(classes: Sequence[str]) -> dict[str, Any]:
    """Ids and names of classes as in config.json."""
    return {
        "id2label": {str(number): name for number, name in enumerate(classes)},
        "label2id": {name: number for number, name in enumerate(classes)},
    }


def read_classes(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The classes in a config.json."""
    named = config.get("id2label")
    if not isinstance(named, dict) or not named:
        return ("LABEL_0", "LABEL_1")  # what transformers takes where nothing is said
    classes = [named.get(str(number)) for number in range(len(named))]
    if any(not isinstance(name, str) for name in classes):
        raise InputError(f"{CONFIG_FILE}: 'id2label' must name the classes 0 to {len(named) - 1} in words")
    return tuple(str(name) for name in classes)


def find_class(numbers: Mapping[str, int], label: str, place: str) -> int:
    if label not in numbers:
        raise InputError(
            f"{place} has the label '{label}', which no training example has; known are {list_names(tuple(numbers))}"
        )
    return numbers[label]


def list_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED:,} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more


def describe_shares(classes: Sequence[str], counts: Sequence[float], num_examples: int) -> str:
    """Each class with its share of the examples."""
    return list_names([f"{name} {count / num_examples:.0%}" for name, count in zip(classes, counts, strict=True)])


def _spell(label: Any) -> str:
    if isinstance(label, bool):
        return str(label).lower()
    name = str(label).strip()
    refuse_half_characters(name, "a label")
    return name


def _read_number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
