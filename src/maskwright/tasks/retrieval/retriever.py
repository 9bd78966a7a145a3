"""The kinds of retrievers: a text becomes a vector (dense), weights of tokens (splade) or vectors of them (colbert)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from maskwright.models.files.model_folder import read_own_settings
from maskwright.models.transformers_encoder import TunedEncoder
from maskwright.tasks.config import TaskConfig
from maskwright.tasks.heads import SETTINGS_PART, TaskHead, build_embedding_head, check_pooling
from maskwright.tasks.retrieval.colbert import LateRetrieval, build_late_head, featurize_late
from maskwright.tasks.retrieval.dense import DenseRetrieval
from maskwright.tasks.retrieval.examples import RetrievalExample, RetrievalFile, read_retrieval
from maskwright.tasks.retrieval.settings import COLBERT, DENSE, SPLADE, load_settings, read_settings
from maskwright.tasks.retrieval.splade import SpladeRetrieval, build_splade_head
from maskwright.tasks.similarity.examples import GroupFeatures, featurize_groups
from maskwright.tasks.similarity.text_similarity import DEFAULT_POOLING
from maskwright.tasks.tables import Table
from maskwright.text.tokenizer.tokenizer import Tokenizer

_TASKS = {SPLADE: SpladeRetrieval, COLBERT: LateRetrieval}


def read_examples(source: str | Path | Table, config: TaskConfig) -> RetrievalFile:
    return read_retrieval(source, config, read_settings(config).learns_scores)


def featurize_retrieval(
    examples: Sequence[RetrievalExample], tokenizer: Tokenizer, max_length: int, config: TaskConfig
) -> GroupFeatures:
    settings = read_settings(config)
    if settings.kind == COLBERT:
        return featurize_late(examples, tokenizer, max_length, settings)
    # the regulariser of sparse vectors is one of whole batches, whatever the loss
    are_compared = not settings.learns_scores or settings.kind == SPLADE
    prompts = settings.query_prompt, settings.document_prompt
    return featurize_groups(examples, tokenizer, max_length, are_compared, prompts)


def build_retrieval(examples: Sequence[RetrievalExample], config: TaskConfig) -> DenseRetrieval:
    """The task for these settings and training examples."""
    settings = read_settings(config)
    if settings.kind != DENSE:
        return _TASKS[settings.kind](settings)
    return DenseRetrieval(check_pooling(config.pooling or DEFAULT_POOLING), settings, config.max_length)


def load_retrieval(config: Mapping[str, Any]) -> DenseRetrieval:
    """The task of a saved model, from its config.json."""
    settings = load_settings(config)
    if settings.kind != DENSE:
        return _TASKS[settings.kind](settings)
    vectors = read_own_settings(config, SETTINGS_PART)
    return DenseRetrieval(check_pooling(str(vectors.get("pooling"))), settings, vectors.get("max_length"))


def build_retrieval_head(encoder: TunedEncoder, num_outputs: int, config: Mapping[str, Any]) -> TaskHead:
    """The head for a config.json of the task."""
    kind = load_settings(config).kind
    if kind == DENSE:
        return build_embedding_head(encoder, num_outputs, config)
    return build_splade_head(encoder, config) if kind == SPLADE else build_late_head(encoder, config)
