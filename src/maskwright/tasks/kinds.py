"""The tasks by the names that commands use: each is examples, features, a head and a scorer.

A new task is a file for each of these that differs, and an entry here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol, Self

from torch import nn

from maskwright.errors import InputError
from maskwright.models.any_encoder import find_hidden_size
from maskwright.models.files.model_folder import CONFIG_FILE, read_own_settings
from maskwright.models.transformers_model import ENCODER
from maskwright.storage import refuse_unknown_fields
from maskwright.suggestions import suggest
from maskwright.tasks.config import TaskConfig
from maskwright.tasks.examples import ColumnNames, Example, ExampleFile, read_examples
from maskwright.tasks.features import Features, featurize
from maskwright.tasks.heads import (
    RETRIEVAL_PART,
    SEQUENCE_ARCHITECTURE,
    SETTINGS_PART,
    SPAN_ARCHITECTURE,
    TOKEN_ARCHITECTURE,
    TaskHead,
    build_embedding_head,
    build_sequence_head,
    build_span_head,
    build_token_head,
)
from maskwright.tasks.loader import TaskLoader
from maskwright.tasks.ner.examples import read_tagged_file
from maskwright.tasks.ner.features import featurize_words
from maskwright.tasks.ner.token_classification import TokenClassification
from maskwright.tasks.nlp_heads import SETTINGS_PART as NLP_HEAD_PART
from maskwright.tasks.nlp_heads import NLPTaskConfig, load_nlp_head
from maskwright.tasks.qa.examples import CONTEXT_COLUMN, QUESTION_COLUMN, read_questions
from maskwright.tasks.qa.features import featurize_questions
from maskwright.tasks.qa.question_answering import QuestionAnswering
from maskwright.tasks.retrieval import retriever
from maskwright.tasks.retrieval.colbert import LateLoader
from maskwright.tasks.retrieval.rerank import (
    RerankLoader,
    ScoreReranking,
    build_rerank,
    describes_reranker,
    featurize_rerank,
    read_rerank,
)
from maskwright.tasks.retrieval.settings import RETRIEVAL_FIELDS
from maskwright.tasks.sequence import classification, multi_label, regression
from maskwright.tasks.sequence.classification import Classification
from maskwright.tasks.sequence.multi_label import MultiLabel
from maskwright.tasks.sequence.regression import Regression
from maskwright.tasks.sequence.taught import TEACHER_SETTINGS, build_classification, build_regression
from maskwright.tasks.similarity.examples import GroupLoader, read_similarity
from maskwright.tasks.similarity.text_similarity import build_similarity, featurize_similarity, load_similarity
from maskwright.tasks.tables import Table
from maskwright.tasks.task import Task
from maskwright.text.tokenizer.tokenizer import Tokenizer

SEQUENCE_CLASSES = "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING"
TOKEN_CLASSES = "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING"  # noqa: S105 (a name of transformers, no password)
SPAN_CLASSES = "MODEL_FOR_QUESTION_ANSWERING_MAPPING"


class ExampleSource(Protocol):
    """The examples of a file, each with its `place` and `content`."""

    @property
    def path(self) -> Path: ...

    @property
    def examples(self) -> list[Any]: ...

    def describe(self) -> str:
        """A summary: the number of examples, guessed columns and dropped records."""
        ...

    def check_same_form(self, other: Self) -> None:
        """Refuse a held-out file of another form."""
        ...


_PAIR_COLUMNS = ("sentence1", "sentence2")
_TEXT_COLUMNS: Mapping[int, Sequence[str]] = {2: ("text", "label"), 3: (*_PAIR_COLUMNS, "label")}


@dataclass(frozen=True)
class TaskKind:
    read: Callable[[str | Path | Table, TaskConfig], ExampleSource]
    featurize: Callable[[Sequence[Any], Tokenizer, int, TaskConfig], Features]
    """A function that tokenizes examples to documents of limited length."""
    build_head: Callable[[Any, int, Mapping[str, Any]], TaskHead]
    """Of an encoder of ours; where `their_classes` are encoders alone, of any."""
    from_examples: Callable[[Sequence[Any], TaskConfig], Task]
    """A function that builds the task for training examples."""
    from_description: Callable[[Mapping[str, Any]], Task]
    """The task of a saved model, from its config.json."""
    their_classes: str
    """The name of transformers' mapping of classes for the task, for foreign encoders."""
    loader: type[TaskLoader] = TaskLoader
    own_settings: tuple[str, ...] = ()
    """The settings of `TaskConfig` that only some tasks have."""
    tuple_columns: Mapping[int, Sequence[str]] = field(default_factory=lambda: _TEXT_COLUMNS)
    """The columns of examples that are given as tuples, by their size."""


def _read(source: str | Path | Table, config: TaskConfig) -> ExampleFile:
    return read_examples(source, _name_columns(config))


def _read_pairs(source: str | Path | Table, config: TaskConfig) -> ExampleFile:
    return read_examples(source, _name_columns(config), needs_pair=True)


def _read_multi_label(source: str | Path | Table, config: TaskConfig) -> ExampleFile:
    """Read an example that may have no class (an empty field)."""
    return read_examples(source, _name_columns(config), may_be_unlabelled=True)


def _name_columns(config: TaskConfig) -> ColumnNames:
    return ColumnNames(config.text_column, config.second_column, config.label_column)


def _featurize(examples: Sequence[Example], tokenizer: Tokenizer, max_length: int, config: TaskConfig) -> Features:
    return featurize(examples, tokenizer, max_length)


KINDS = {
    "classification": TaskKind(
        _read,
        _featurize,
        build_sequence_head,
        build_classification,
        Classification.from_description,
        SEQUENCE_CLASSES,
        own_settings=(*TEACHER_SETTINGS, "temperature"),
    ),
    "multi-label": TaskKind(
        _read_multi_label,
        _featurize,
        build_sequence_head,
        MultiLabel.from_examples,
        MultiLabel.from_description,
        SEQUENCE_CLASSES,
    ),
    "ner": TaskKind(
        read_tagged_file,
        featurize_words,
        build_token_head,
        TokenClassification.from_examples,
        TokenClassification.from_description,
        TOKEN_CLASSES,
        own_settings=("tag_scheme",),
        tuple_columns={2: ("words", "tags")},
    ),
    "pairs": TaskKind(
        _read_pairs,
        _featurize,
        build_sequence_head,
        build_classification,
        Classification.from_description,
        SEQUENCE_CLASSES,
        own_settings=(*TEACHER_SETTINGS, "temperature"),
    ),
    "qa": TaskKind(
        read_questions,
        featurize_questions,
        build_span_head,
        QuestionAnswering.from_examples,
        QuestionAnswering.from_description,
        SPAN_CLASSES,
        own_settings=("doc_stride", "max_answer_length", "max_question_length"),
        tuple_columns={3: (QUESTION_COLUMN, CONTEXT_COLUMN, "answers")},
    ),
    "regression": TaskKind(
        _read,
        _featurize,
        build_sequence_head,
        build_regression,
        Regression.from_description,
        SEQUENCE_CLASSES,
        own_settings=TEACHER_SETTINGS,
    ),
    "rerank": TaskKind(
        read_rerank,
        featurize_rerank,
        build_sequence_head,
        build_rerank,
        ScoreReranking.from_description,
        SEQUENCE_CLASSES,
        RerankLoader,
        own_settings=("loss", "negative_column", "num_negatives"),
        tuple_columns={2: ("query", "positive"), 3: ("query", "positive", "negative")},
    ),
    "retrieval": TaskKind(
        retriever.read_examples,
        retriever.featurize_retrieval,
        retriever.build_retrieval_head,
        retriever.build_retrieval,
        retriever.load_retrieval,
        ENCODER,
        LateLoader,
        own_settings=(
            *("kind", "loss", "pooling", "temperature", "negative_column", "num_negatives", "symmetric"),
            *("false_negative_margin", "dims", "query_prompt", "document_prompt"),
            *("query_flops", "document_flops", "width", "query_length"),
        ),
        tuple_columns={2: ("query", "positive"), 3: ("query", "positive", "negative")},
    ),
    "similarity": TaskKind(
        read_similarity,
        featurize_similarity,
        build_embedding_head,
        build_similarity,
        load_similarity,
        ENCODER,
        GroupLoader,
        own_settings=("loss", "pooling", "temperature", "negative_column"),
        tuple_columns={2: _PAIR_COLUMNS, 3: (*_PAIR_COLUMNS, "label")},
    ),
}
_SIMILARITY_FIELDS = ("loss", "pooling", "temperature", "scale", "max_length")
_SEQUENCE_KINDS = {
    classification.PROBLEM_TYPE: "classification",
    multi_label.PROBLEM_TYPE: "multi-label",
    regression.PROBLEM_TYPE: "regression",
}


def find_kind(name: str) -> TaskKind:
    if name not in KINDS:
        raise InputError(f"there is no task '{name}'{suggest(name, KINDS)}")
    return KINDS[name]


def check_own_settings(config: TaskConfig) -> None:
    """Refuse settings that only other tasks have."""
    own = find_kind(config.task).own_settings
    for name in {name: None for kind in KINDS.values() for name in kind.own_settings if name not in own}:
        if getattr(config, name) != TaskConfig.model_fields[name].default:
            owners = [task for task, kind in KINDS.items() if name in kind.own_settings]
            raise InputError(
                f"--{name.replace('_', '-')} is for {' and '.join(owners)}; {config.task} has no use for it: leave it"
                " out"
            )


def find_described_kind(config: Mapping[str, Any], folder: Path) -> TaskKind:
    """The task of a saved model; by default a single output means regression, as in transformers."""
    own_head = read_own_settings(config, NLP_HEAD_PART)
    refuse_unknown_fields(own_head, {one.name for one in fields(NLPTaskConfig)}, folder / CONFIG_FILE)
    refuse_unknown_fields(read_own_settings(config, SETTINGS_PART), _SIMILARITY_FIELDS, folder / CONFIG_FILE)
    refuse_unknown_fields(read_own_settings(config, RETRIEVAL_PART), RETRIEVAL_FIELDS, folder / CONFIG_FILE)
    kind = _find_kind(config, folder)
    return kind if not own_head else replace(kind, build_head=lambda encoder, *_: _load_own_head(own_head, encoder))


def _load_own_head(settings: Mapping[str, Any], encoder: nn.Module) -> TaskHead:
    return load_nlp_head(settings, find_hidden_size(encoder))


def _find_kind(config: Mapping[str, Any], folder: Path) -> TaskKind:
    architectures = config.get("architectures")
    names = [str(name) for name in architectures] if isinstance(architectures, list) else []
    if read_own_settings(config, RETRIEVAL_PART):
        return KINDS["retrieval"]
    if read_own_settings(config, SETTINGS_PART):
        return KINDS["similarity"]
    if any(name.endswith(TOKEN_ARCHITECTURE) for name in names):
        return KINDS["ner"]
    if any(name.removesuffix("Simple").endswith(SPAN_ARCHITECTURE) for name in names):  # XLNet's, XLM's
        return KINDS["qa"]
    if not any(name.endswith(SEQUENCE_ARCHITECTURE) for name in names):
        found = ", ".join(names) or "no architecture"
        raise InputError(f"{folder} holds {found}; expected a model fine-tuned for a task: make one with finetune")
    if describes_reranker(config):
        return KINDS["rerank"]
    problem = config.get("problem_type")
    if problem is None:
        has_one_output = len(config.get("id2label") or {}) == 1
        problem = regression.PROBLEM_TYPE if has_one_output else classification.PROBLEM_TYPE
    if problem not in _SEQUENCE_KINDS:
        raise InputError(f"{folder}: 'problem_type' is {problem!r}{suggest(str(problem), _SEQUENCE_KINDS)}")
    return KINDS[_SEQUENCE_KINDS[problem]]
