"""The tasks by the names that commands use: each is examples, features, a head and a scorer.

A new task is a file for each of these that differs, and an entry here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from maskwright.errors import InputError
from maskwright.models.encoder import PackedEncoder
from maskwright.suggestions import suggest
from maskwright.tasks import classification, multi_label, regression
from maskwright.tasks.classification import Classification
from maskwright.tasks.columns import ColumnNames
from maskwright.tasks.config import TaskConfig
from maskwright.tasks.examples import Example, ExampleFile, read_examples
from maskwright.tasks.features import Features, featurize
from maskwright.tasks.multi_label import MultiLabel
from maskwright.tasks.regression import Regression
from maskwright.tasks.sequence_layouts import SEQUENCE_ARCHITECTURE, build_sequence_head
from maskwright.tasks.task import Task
from maskwright.tasks.task_head import TaskHead
from maskwright.text.tokenizer import Tokenizer


class ExampleSource(Protocol):
    """The examples of a file, each with its `place` and `content`."""

    @property
    def path(self) -> Path: ...

    @property
    def examples(self) -> list[Any]: ...

    def describe(self) -> str:
        """How many there are, and what was guessed and left out."""
        ...

    def check_same_form(self, other: Self) -> None:
        """Refuse a held-out file that does not go with this one."""
        ...


@dataclass(frozen=True)
class TaskKind:
    read: Callable[[str | Path, TaskConfig], ExampleSource]
    featurize: Callable[[Sequence[Any], Tokenizer, int, TaskConfig], Features]
    """Examples to documents of so many tokens at most."""
    build_head: Callable[[PackedEncoder, int, Mapping[str, Any]], TaskHead]
    from_examples: Callable[[Sequence[Any], TaskConfig], Task]
    """The task that training examples ask for."""
    from_description: Callable[[Mapping[str, Any]], Task]
    """The task of a saved model, from its config.json."""


def _read(path: str | Path, config: TaskConfig) -> ExampleFile:
    return read_examples(path, _name_columns(config))


def _read_pairs(path: str | Path, config: TaskConfig) -> ExampleFile:
    return read_examples(path, _name_columns(config), needs_pair=True)


def _read_multi_label(path: str | Path, config: TaskConfig) -> ExampleFile:
    """An example may have no class, and then an empty field."""
    return read_examples(path, _name_columns(config), may_be_unlabelled=True)


def _name_columns(config: TaskConfig) -> ColumnNames:
    return ColumnNames(config.text_column, config.second_column, config.label_column)


def _featurize(examples: Sequence[Example], tokenizer: Tokenizer, max_length: int, config: TaskConfig) -> Features:
    return featurize(examples, tokenizer, max_length)


KINDS = {
    "classification": TaskKind(
        _read, _featurize, build_sequence_head, Classification.from_examples, Classification.from_description
    ),
    "multi-label": TaskKind(
        _read_multi_label, _featurize, build_sequence_head, MultiLabel.from_examples, MultiLabel.from_description
    ),
    "pairs": TaskKind(
        _read_pairs, _featurize, build_sequence_head, Classification.from_examples, Classification.from_description
    ),
    "regression": TaskKind(
        _read, _featurize, build_sequence_head, Regression.from_examples, Regression.from_description
    ),
}
_SEQUENCE_KINDS = {
    classification.PROBLEM_TYPE: "classification",
    multi_label.PROBLEM_TYPE: "multi-label",
    regression.PROBLEM_TYPE: "regression",
}


def find_kind(name: str) -> TaskKind:
    if name not in KINDS:
        raise InputError(f"there is no task '{name}'{suggest(name, KINDS)}")
    return KINDS[name]


def find_described_kind(config: Mapping[str, Any], folder: Path) -> TaskKind:
    """The task of a saved model; where nothing is said, a single output is a measure, as transformers takes it."""
    architectures = config.get("architectures")
    names = [str(name) for name in architectures] if isinstance(architectures, list) else []
    if not any(name.endswith(SEQUENCE_ARCHITECTURE) for name in names):
        found = ", ".join(names) or "no architecture"
        raise InputError(f"{folder} holds {found}; expected a model fine-tuned for a task: make one with finetune")
    problem = config.get("problem_type")
    if problem is None:
        has_one_output = len(config.get("id2label") or {}) == 1
        problem = regression.PROBLEM_TYPE if has_one_output else classification.PROBLEM_TYPE
    if problem not in _SEQUENCE_KINDS:
        raise InputError(f"{folder}: 'problem_type' is {problem!r}{suggest(str(problem), _SEQUENCE_KINDS)}")
    return KINDS[_SEQUENCE_KINDS[problem]]
