"""Which task of similarity a run asks for: a loss of pairs, and how texts become vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from maskwright.errors import InputError
from maskwright.models.files.model_folder import read_own_settings
from maskwright.suggestions import suggest
from maskwright.tasks.config import TaskConfig
from maskwright.tasks.pooling import Pooling
from maskwright.tasks.similarity.contrastive import ContrastiveSimilarity
from maskwright.tasks.similarity.cosine import CosineSimilarity, find_scale
from maskwright.tasks.similarity.embedding_head import SETTINGS_PART, check_pooling
from maskwright.tasks.similarity.examples import CONTRASTIVE, COSINE, LOSSES, SimilarityExample
from maskwright.tasks.similarity.group_features import GroupFeatures, featurize_groups
from maskwright.tasks.task import Task
from maskwright.text.tokenizer.tokenizer import Tokenizer

DEFAULT_POOLING: Pooling = "mean"
DEFAULT_TEMPERATURE = 0.05
_FEWEST = 2


def build_similarity(examples: Sequence[SimilarityExample], config: TaskConfig) -> Task:
    """The task that the settings and training examples ask for."""
    for name, is_set in (("class-weights", config.class_weights), ("label-smoothing", config.label_smoothing)):
        if is_set:
            raise InputError(f"--{name} is for classes; similarity has none: leave it out")
    loss = config.loss or CONTRASTIVE
    if loss not in LOSSES:
        raise InputError(f"there is no loss '{loss}' for similarity{suggest(loss, LOSSES)}")
    pooling = check_pooling(config.pooling or DEFAULT_POOLING)
    if loss == CONTRASTIVE:
        if config.batch_size < _FEWEST:
            raise InputError("--batch-size is 1, which leaves the contrastive loss nothing to compare with; raise it")
        return ContrastiveSimilarity(pooling, config.temperature or DEFAULT_TEMPERATURE, config.max_length)
    for option in ("temperature", "negative_column"):
        if getattr(config, option) is not None:
            raise InputError(f"--{option.replace('_', '-')} is for --loss contrastive, not cosine; leave it out")
    labels = [example.label for example in examples if example.label is not None]
    if len(set(labels)) < _FEWEST:
        raise InputError(f"all pairs of {config.train} have the label {labels[0]:g}; there is nothing to learn")
    return CosineSimilarity(pooling, find_scale(labels), config.max_length)


def load_similarity(config: Mapping[str, Any]) -> Task:
    """The task of a saved model, from its config.json."""
    settings = read_own_settings(config, SETTINGS_PART)
    pooling, max_length = check_pooling(str(settings.get("pooling"))), settings.get("max_length")
    if settings.get("loss") == COSINE:
        low, high = settings["scale"]
        return CosineSimilarity(pooling, (float(low), float(high)), max_length)
    return ContrastiveSimilarity(pooling, float(settings.get("temperature", DEFAULT_TEMPERATURE)), max_length)


def featurize_similarity(
    examples: Sequence[SimilarityExample], tokenizer: Tokenizer, max_length: int, config: TaskConfig
) -> GroupFeatures:
    return featurize_groups(examples, tokenizer, max_length, are_compared=config.loss != COSINE)
