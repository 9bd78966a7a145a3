"""Which columns of a file hold the texts and the label: named by the user, or guessed by the names people use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from maskwright.errors import InputError
from maskwright.suggestions import name_option

_PAIRS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("question", "passage"),
    ("question", "answer"),
    ("query", "passage"),
    ("query", "document"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("#1 string", "#2 string"),
    ("anchor", "positive"),
    ("sent0", "sent1"),
)
_TEXTS = ("text", "sentence", "review", "content", "comment", "tweet", "utterance", "query", "question", "document")
_LABELS = (
    "label",
    "labels",
    "gold_label",
    "category",
    "class",
    "target",
    "score",
    "similarity",
    "similarity_score",
    "relatedness_score",
    "rating",
    "intent",
    "sentiment",
    "emotion",
    "topic",
    "is_duplicate",
    "quality",
)
_LABELS_OF_ONE_TEXT = {"category", "class", "intent", "sentiment", "emotion", "topic"}
"""They say what a text is about, not whether two belong together."""


@dataclass(frozen=True)
class ColumnNames:
    """What the user named; None is guessed, but no second text is guessed beside a text that was named."""

    text: str | None = None
    second: str | None = None
    label: str | None = None


@dataclass(frozen=True)
class Columns:
    text: str
    second: str | None
    label: str

    def __str__(self) -> str:
        texts = f"text '{self.text}'" if self.second is None else f"texts '{self.text}' and '{self.second}'"
        return f"{texts}, label '{self.label}'"


def choose_columns(path: Path, found: Sequence[str], named: ColumnNames, needs_pair: bool) -> Columns:
    """The columns to read, of those a file has."""
    text, second = choose_texts(path, found, named, needs_pair)
    label = find_label(found, named)
    if label is None:
        raise InputError(
            f"{path} has no column known to hold labels; it has {_list(found)}: name it with"
            f" {name_option('label_column')}"
        )
    chosen = [name for name in (text, second, label) if name is not None]
    if len(set(chosen)) < len(chosen):
        raise InputError(f"{path}: the columns for texts and label are {_list(chosen)}; name different ones")
    return Columns(text, second, label)


def choose_texts(path: Path, found: Sequence[str], named: ColumnNames, needs_pair: bool) -> tuple[str, str | None]:
    """The columns of the texts alone."""
    for name, option in ((named.text, "text"), (named.second, "second"), (named.label, "label")):
        if name is not None and name not in found:
            raise InputError(
                f"{path} has no column '{name}'; it has {_list(found)}: choose one with"
                f" {name_option(f'{option}_column')}"
            )
    text, second = _choose_texts(path, found, named, {name.lower(): name for name in found})
    if needs_pair and second is None:
        raise InputError(
            f"{path} has no two columns known to hold a pair of texts; it has {_list(found)}: name them with"
            f" {name_option('text_column')} and {name_option('second_column')}"
        )
    return text, second


def find_label(found: Sequence[str], named: ColumnNames) -> str | None:
    """The column of the label; None where none is known by its name."""
    return named.label or next(iter(_list_known_labels(found)), None)


def list_pair_labels(found: Sequence[str]) -> list[str]:
    """The columns whose names say how much two texts belong together, the likeliest first."""
    return [name for name in _list_known_labels(found) if name.lower() not in _LABELS_OF_ONE_TEXT]


def _list_known_labels(found: Sequence[str]) -> list[str]:
    spelt = {name.lower(): name for name in found}
    return [spelt[name] for name in _LABELS if name in spelt]


def _choose_texts(
    path: Path, found: Sequence[str], named: ColumnNames, spelt: Mapping[str, str]
) -> tuple[str, str | None]:
    if named.text is not None:
        return named.text, named.second
    if named.second is not None:
        raise InputError(f"the second column is '{named.second}' without a first; add {name_option('text_column')}")
    for first, second in _PAIRS:
        if first in spelt and second in spelt:
            return spelt[first], spelt[second]
    text = next((spelt[name] for name in _TEXTS if name in spelt), None)
    if text is None:
        raise InputError(
            f"{path} has no column known to hold text; it has {_list(found)}: name it with {name_option('text_column')}"
        )
    return text, None


def _list(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
