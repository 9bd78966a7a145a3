"""Hold examples out of training where no file for evaluation is given."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from maskwright.errors import InputError
from maskwright.suggestions import name_option
from maskwright.tasks.labels import list_names
from maskwright.tasks.tables import Table, read_table

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
    return _split(file, is_held_out)


def _split(file: Any, is_held_out: Collection[int]) -> tuple[Any, Any]:
    parts: tuple[list[Any], list[Any]] = ([], [])
    for number, example in enumerate(file.examples):
        parts[number in is_held_out].append(example)
    left, held_out = (replace(file, examples=part) for part in parts)
    missing = find_missing_labels(file.examples, held_out.examples)
    if missing and len({one.label for one in held_out.examples}) < 2:
        raise InputError(
            f"{file.path}: of the label {list_names(missing)} no example would be held out (too few texts or groups),"
            f" and scores on one label alone say nothing; give examples for evaluation as {name_option('validation')}"
        )
    return left, held_out


def find_missing_labels(examples: Sequence[Any], held_out: Sequence[Any]) -> list[str]:
    """Labels of which no example is held out; none where labels are no classes."""
    labels = set(_find_labels(examples)) - {None}
    return sorted(str(label) for label in labels.difference(one.label for one in held_out)) if labels else []


def hold_out_groups(file: Any, groups: Mapping[str, Any], share: float = HELD_OUT_SHARE) -> tuple[Any, Any]:
    """As `hold_out`, but examples of one group stay on one side too; `groups` are by the places of examples.

    Groups are taken in an order by their values alone, each if that brings the shares of all labels nearer to `share`.
    An example without a group (None) is one of its own.
    """
    parts = _join_groups(file.examples, groups)
    if len(parts) < 2:
        raise InputError(
            f"all examples of {file.path} belong together by their groups and texts, so none can be held out; group by"
            f" another column, or give examples for evaluation as {name_option('validation')}"
        )
    labels = _find_labels(file.examples)
    totals = Counter(labels)
    missing = {label: share * total for label, total in totals.items()}
    held_out: set[int] = set()
    for may_exceed in (False, True):  # groups that are larger than what is missing come last
        for part in parts:
            counts = Counter(labels[number] for number in part)
            # What the squares of the missing numbers, relative to the size of each label, change by.
            change = sum(count * (count - 2.0 * missing[label]) / totals[label] for label, count in counts.items())
            fits = may_exceed or len(part) <= sum(missing.values())
            is_last_left = len(held_out) + len(part) == len(labels)
            if change < 0 and fits and not is_last_left and held_out.isdisjoint(part):
                held_out.update(part)
                missing = {label: wanted - counts[label] for label, wanted in missing.items()}
    return _split(file, held_out or min(parts, key=len))


def _join_groups(examples: Sequence[Any], groups: Mapping[str, Any]) -> list[list[int]]:
    """The numbers of examples that belong together, in an order that depends on groups and texts alone."""
    joined: dict[str, set[str]] = {}
    members: dict[str, list[int]] = {}
    for number, example in enumerate(examples):
        text, group = _hash_text(example), groups[example.place]
        members.setdefault(text, []).append(number)
        keys = {text} if group is None else {text, _hash(f"group {group!r}")}
        for key in keys:
            joined.setdefault(key, set()).update(keys)
    parts, seen = [], set[str]()
    for first in sorted(joined):
        found, waiting = set[str](), {first} - seen
        while waiting:
            found |= waiting
            waiting = set().union(*(joined[key] for key in waiting)) - found
        seen |= found
        if found:
            parts.append(sorted(number for key in found for number in members.get(key, ())))
    return parts


def _split_by_label(examples: Sequence[Any], groups: Mapping[str, list[int]]) -> dict[Hashable, list[str]]:
    """Keys of groups by the label of their first example; all together where labels are no classes."""
    labels = _find_labels(examples)
    found: dict[Hashable, list[str]] = {}
    for key, numbers in groups.items():
        found.setdefault(labels[numbers[0]], []).append(key)
    return found


def _find_labels(examples: Sequence[Any]) -> list[Hashable]:
    """The label of each example; None for all where labels are no classes."""
    labels = [getattr(example, "label", None) for example in examples]
    is_class = all(isinstance(label, Hashable) for label in labels)
    return labels if is_class and len(set(labels)) * _FEWEST_PER_LABEL <= len(labels) else [None] * len(labels)


def _hash_text(example: Any) -> str:
    """The context of a question, the text or the first of a pair, or all of the example."""
    return _hash(repr(getattr(example, "context", None) or getattr(example, "text", None) or example.content))


def _hash(content: str) -> str:
    return hashlib.blake2b(content.encode(errors="backslashreplace"), digest_size=16).hexdigest()


def read_groups(source: str | Path | Table, column: str) -> dict[str, Any]:
    """The values of a column by the places of records; None where there is none, or an empty field."""
    try:
        table = read_table(source)
    except InputError as error:
        raise InputError(f"{name_option('group_by')} names a column of a table: {error}") from error
    if column not in table.columns:
        raise InputError(
            f"{table.path} has no column '{column}'; it has {', '.join(table.columns)}: choose one with"
            f" {name_option('group_by')}"
        )
    values = ((record.place, record.values.get(column)) for record in table.records)
    return {place: None if value == "" else value for place, value in values}
