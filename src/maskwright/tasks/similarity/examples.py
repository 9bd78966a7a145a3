"""Pairs of texts that do or do not belong together, with or without a label, and their batches.

Each text is a document of its own, and all texts of an example share a row. B rows, P examples of a row, G texts of an
example, N = P * G documents.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from maskwright.batch import PackedBatch
from maskwright.data.assembly import NUM_SPECIALS
from maskwright.data.store import TokenStore
from maskwright.errors import InputError
from maskwright.suggestions import name_option
from maskwright.tasks.config import TaskConfig
from maskwright.tasks.examples import NO_CONSENSUS, ColumnNames, choose_texts, list_pair_labels, read_text
from maskwright.tasks.features import Features
from maskwright.tasks.labels import list_names
from maskwright.tasks.loader import TaskBatch, TaskLoader, WholeBatch
from maskwright.tasks.tables import Record, Table, read_table
from maskwright.text.tokenizer.tokenizer import Tokenizer

CONTRASTIVE, COSINE = "contrastive", "cosine"
LOSSES = (CONTRASTIVE, COSINE)
_NEGATIVES = ("negative", "hard_neg", "hard_negative")
_NAMED_LABELS = {
    **dict.fromkeys(("entailment", "duplicate", "paraphrase", "similar", "true", "yes"), 1.0),
    **dict.fromkeys(("not_entailment", "neutral", "contradiction", "not_duplicate", "not_paraphrase"), 0.0),
    **dict.fromkeys(("dissimilar", "false", "no"), 0.0),
}
_CLASSES_OF_NLI = {0.0, 1.0, 2.0}
_SHARE_OF_RANGE = 0.8
"""Pairs whose label lies above this share of the labels' range belong together: 4 and more of the STS benchmark's 5."""


@dataclass(frozen=True)
class SimilarityExample:
    place: str
    """Where it stands, as 'file:line'."""
    texts: tuple[str, ...]
    """Two, and perhaps a third that does not belong to the first though it looks so."""
    label: float | None
    belongs: bool
    """Whether the two texts belong together; True without a label."""

    @property
    def content(self) -> tuple[Any, ...]:
        return *self.texts, self.label, self.belongs


@dataclass(frozen=True)
class SimilarityFile:
    path: Path
    columns: tuple[str, ...]
    label_column: str | None
    examples: list[SimilarityExample]
    least: float | None
    """From this label on pairs belong together."""
    left_out: dict[str, int]
    """How many records are not among the examples, by reason."""
    ignored: tuple[str, ...] = ()
    """Columns that are not used."""

    def describe(self) -> str:
        texts, ignored = ([f"'{name}'" for name in names] for names in (self.columns, self.ignored))
        label = "no label" if self.label_column is None else f"label '{self.label_column}'"
        if self.least is not None:
            num_belonging = sum(example.belongs for example in self.examples)
            label += f" ({num_belonging:,} of {self.least:g} or more belong together)"
        tail = "".join(f"; {count:,} {reason} left out" for reason, count in self.left_out.items() if count)
        tail += f"; ignored columns: {list_names(ignored)}" if ignored else ""
        return f"{len(self.examples):,} pairs of {self.path}, texts {', '.join(texts)}, {label}{tail}"

    def check_same_form(self, other: SimilarityFile) -> None:
        """Nothing is refused: training and evaluation pairs may have different columns."""


def read_similarity(source: str | Path | Table, config: TaskConfig) -> SimilarityFile:
    """The pairs of a file; the contrastive loss learns from those that belong together alone."""
    table = read_table(source)
    is_trained_on = str(table.path if isinstance(source, Table) else source) == config.train
    named = ColumnNames(config.text_column, config.second_column, config.label_column)
    first, second = choose_texts(table.path, table.columns, named, needs_pair=True)
    assert second is not None
    label_column = config.label_column or _find_label(table)
    learns_scores = config.loss == COSINE
    if learns_scores and label_column is None:
        raise InputError(
            f"{table.path} has no column known to hold labels, which --loss cosine learns; name it with"
            f" {name_option('label_column')}, or use --loss contrastive"
        )
    columns = (first, second, *_choose_negative(table, config, is_trained_on))
    decided = [one for one in table.records if (label_column, one.values.get(label_column or "")) != NO_CONSENSUS]
    labels = None if label_column is None else [_read_label(record, label_column) for record in decided]
    least = None if labels is None else _find_least(labels, table.path, learns_scores)
    examples = [
        _build_example(record, columns, None if labels is None else labels[number], least)
        for number, record in enumerate(decided)
    ]
    with_texts = [example for example in examples if all(example.texts)]
    is_narrowed = not learns_scores and is_trained_on
    kept = [example for example in with_texts if example.belongs] if is_narrowed else with_texts
    if not kept:
        raise InputError(f"{table.path} holds no pair of texts that belong together; check the columns {columns}")
    left_out = {
        "with an empty text": len(examples) - len(with_texts),
        "without an agreed label": len(table.records) - len(decided),
        "that do not belong together": len(with_texts) - len(kept),
    }
    ignored = tuple(name for name in table.columns if name not in (*columns, label_column))
    return SimilarityFile(table.path, columns, label_column, kept, None if learns_scores else least, left_out, ignored)


def _find_label(table: Table) -> str | None:
    """By name and content; where the content of none is a label, the first name, whose records are then refused."""
    known = list_pair_labels(table.columns)
    has_labels = (
        name for name in known if any(_parse_label(record.values.get(name)) is not None for record in table.records)
    )
    return next(has_labels, next(iter(known), None))


def _choose_negative(table: Table, config: TaskConfig, is_trained_on: bool) -> tuple[str, ...]:
    """The column of hard negatives, if there is one and the loss uses it."""
    name = config.negative_column
    if name is not None and name not in table.columns:
        if not is_trained_on:
            return ()  # held-out pairs are judged without
        raise InputError(f"{table.path} has no column '{name}'; choose one with {name_option('negative_column')}")
    if name is None and config.loss != COSINE:
        spelt = {column.lower(): column for column in table.columns}
        name = next((spelt[known] for known in _NEGATIVES if known in spelt), None)
    return () if name is None else (name,)


def _build_example(
    record: Record, columns: Sequence[str], label: float | None, least: float | None
) -> SimilarityExample:
    texts = tuple(read_text(record, column) for column in columns)
    return SimilarityExample(record.place, texts, label, label is None or least is None or label >= least)


def _read_label(record: Record, column: str) -> float:
    value = record.values.get(column)
    label = _parse_label(value)
    if label is None:
        raise InputError(
            f"{record.place} has the label {value!r} in '{column}'; similarity learns from numbers and from entailment,"
            f" duplicate and their opposites: rewrite it, take the column out or name another with"
            f" {name_option('label_column')}"
        )
    return label


def _parse_label(value: Any) -> float | None:
    name = str(value).strip().lower()
    try:
        number = _NAMED_LABELS[name] if name in _NAMED_LABELS else float(name)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _find_least(labels: Sequence[float], path: Path, may_be_any: bool) -> float:
    """The lowest label of pairs that belong together."""
    values = set(labels)
    if values == _CLASSES_OF_NLI and not may_be_any:
        raise InputError(
            f"{path} has the labels 0, 1 and 2, which do not say what pairs belong together; write entailment, neutral"
            " and contradiction, or 1 and 0"
        )
    low, high = min(values, default=0.0), max(values, default=0.0)
    return 1.0 if values <= {0.0, 1.0} else low + _SHARE_OF_RANGE * (high - low)


@dataclass(frozen=True)
class GroupFeatures(Features):
    """The texts of an example are G documents that follow each other in the store."""

    group_size: int = 2
    are_compared: bool = False
    """Whether the loss compares the examples of a batch with each other."""

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Tokens of all texts of each example."""
        sizes: NDArray[np.int64] = super().sizes.reshape(-1, self.group_size).sum(1)
        return sizes


class TextGroup(Protocol):
    @property
    def place(self) -> str: ...

    @property
    def texts(self) -> tuple[str, ...]: ...


def featurize_groups(
    examples: Sequence[TextGroup],
    tokenizer: Tokenizer,
    max_length: int,
    are_compared: bool,
    prompts: tuple[str, str] = ("", ""),
) -> GroupFeatures:
    """Tokenize groups; long texts are truncated, and an example is dropped if one of its texts has no tokens.

    `prompts` stand before the first text of a group, and before all others.
    """
    group_size, max_tokens = len(examples[0].texts), max_length - NUM_SPECIALS
    ids = tokenizer.encode_batch(
        [prompts[min(number, 1)] + text for example in examples for number, text in enumerate(example.texts)]
    )
    groups = [ids[start : start + group_size] for start in range(0, len(ids), group_size)]
    chosen = [number for number, group in enumerate(groups) if all(group)]
    if not chosen:
        raise InputError(f"no pair up to {examples[-1].place} has tokens of the model's vocabulary; check the columns")
    documents = [text[:max_tokens] for number in chosen for text in groups[number]]
    num_cut = sum(any(len(text) > max_tokens for text in groups[number]) for number in chosen)
    return GroupFeatures(
        store=TokenStore.from_documents(documents, tokenizer.vocab_size),
        examples=[examples[number] for number in chosen],
        num_cut=num_cut,
        num_empty=len(examples) - len(chosen),
        group_size=group_size,
        are_compared=are_compared,
    )


class GroupLoader(TaskLoader):
    """The documents of an example follow each other in a row, with its number and its target each.

    Sums over documents are then G times those over examples, and their means the same.
    """

    features: GroupFeatures

    @property
    def needs_whole_batches(self) -> bool:
        return self.features.are_compared

    def build_batch(self, examples: NDArray[np.int64]) -> TaskBatch:
        batch = super().build_batch(examples)
        values = {field.name: getattr(batch, field.name) for field in fields(batch)}
        values["targets"] = batch.known_targets.repeat_interleave(self.features.group_size, dim=1)
        return WholeBatch(**values) if self.needs_whole_batches else TaskBatch(**values)

    def _assemble(self, rows: list[NDArray[np.int64]], num_rows: int, row_length: int) -> PackedBatch:
        assembler = self._build_assembler(num_rows, row_length)
        if rows:
            size = self.features.group_size
            counts = np.asarray([len(row) * size for row in rows])
            examples = np.concatenate(rows)
            documents = (examples[:, None] * size + np.arange(size)).flatten()
            numbers = np.repeat(examples, size)
            assembler.add(np.arange(len(rows)), counts, self.features.store, self._plan, documents, numbers)
        return assembler.finish()
