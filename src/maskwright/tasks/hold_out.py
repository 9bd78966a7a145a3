"""Hold examples out of training where no file for evaluation is given."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from maskwright.errors import InputError
from maskwright.suggestions import name_option

HELD_OUT_SHARE = 0.1
_FEWEST_PER_LABEL = 2
"""Labels that are rarer on average, such as measured numbers, are not classes to be held out alike."""


def hold_out(file: Any, share: float = HELD_OUT_SHARE) -> tuple[Any, Any]:
    """The file with what is left to learn from, and with what is held out: the same examples at every call.

    Examples of the same text or context stay together. Of every label about the same share is held out, at least one
    if it has two texts or more. `file` is what a task reads, a dataclass with `examples`.
    """
    groups: dict[str, list[int]] = {}
    for number, example in enumerate(file.examples):
        groups.setdefault(_hash_text(example), []).append(number)
    is_held_out: set[int] = set()
    for keys in _split_by_label(file.examples, groups).values():
        wanted = max(1, round(share * sum(len(groups[key]) for key in keys)))
        num_taken = 0
        for key in sorted(keys)[:-1]:  # one text is always left to learn from
            if num_taken >= wanted:
                break
            is_held_out.update(groups[key])
            num_taken += len(groups[key])
    if not is_held_out:
        raise InputError(
            f"{file.path} has too few texts to hold some out; give examples for evaluation as"
            f" {name_option('validation')}"
        )
    parts: tuple[list[Any], list[Any]] = ([], [])
    for number, example in enumerate(file.examples):
        parts[number in is_held_out].append(example)
    left, held_out = (replace(file, examples=part) for part in parts)
    return left, held_out


def _split_by_label(examples: Sequence[Any], groups: Mapping[str, list[int]]) -> dict[Hashable, list[str]]:
    """Keys of groups by the label of their first example; all together where labels are no classes."""
    labels = [getattr(example, "label", None) for example in examples]
    is_class = all(isinstance(label, Hashable) for label in labels)
    if not is_class or len(set(labels)) * _FEWEST_PER_LABEL > len(labels):
        return {None: list(groups)}
    found: dict[Hashable, list[str]] = {}
    for key, numbers in groups.items():
        found.setdefault(labels[numbers[0]], []).append(key)
    return found


def _hash_text(example: Any) -> str:
    """The context of a question, the text or the first of a pair, or all of the example."""
    text = getattr(example, "context", None) or getattr(example, "text", None) or example.content
    return hashlib.blake2b(repr(text).encode(errors="backslashreplace"), digest_size=16).hexdigest()
