"""Sources as parts of a run: how they are mixed, and what the model knows of each of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from maskwright.config import Config
from maskwright.data.loader import PackedLoader
from maskwright.data.mixture import MixingSource, Mixture
from maskwright.data.shards import PreparedShards, PreparedSource
from maskwright.errors import InputError
from maskwright.runs.inputs import pack_documents
from maskwright.runs.texts import AugmentedLoader, Say, read_texts
from maskwright.sections.data import SourceConfig, SourceLike, build_sources, name_sources
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.training.held_out import Evaluation, evaluate, evaluate_unigram
from maskwright.training.trainer import Trainer

_ROWS_PER_BATCH = 16


def mix_sources(config: Config, train: PackedLoader) -> None:
    """Make the loader mix its sources as the configuration asks; without a word of it, it stays as it is."""
    sources = _list_sources(config, train)
    alphas = [phase.sampling_alpha for phase in config.objective]
    if config.data.sampling_alpha is None and not any(source.start for source in sources) and set(alphas) <= {None}:
        return
    if isinstance(train, AugmentedLoader):
        raise InputError(
            "augmentation tokenizes every epoch anew, and sources that are mixed (sampling_alpha, start) are one stream"
            " over all epochs; set augmentation.probability=0"
        )
    if all(source.start for source in sources):
        raise InputError("every source has a start later than the run's; give at least one of them start 0")
    default = 1.0 if config.data.sampling_alpha is None else config.data.sampling_alpha
    phases = [
        (phase.until or 1.0, default if phase.sampling_alpha is None else phase.sampling_alpha)
        for phase in config.objective
    ]
    training = config.training
    mixture = Mixture(
        sources, train.shards.sources, phases or [(1.0, default)], _count_rows(config, train), training.initial_epoch
    )
    if mixture.changes and (training.max_seconds is not None or training.batch_tokens_start is not None):
        raise InputError(
            "the mixture of sources changes at shares of the run, whose length in rows must be known: leave"
            " training.max_seconds and training.batch_tokens_start unset, and give epochs, max_steps or max_tokens"
        )
    train.mixture = mixture


def split_held_out(config: Config, validation: PackedLoader) -> None:
    """Have each source of the held-out texts evaluated by itself, if there are several."""
    given = config.data.train if config.data.validation is None else config.data.validation
    names = _name_sources(validation, given)
    shards: dict[str, list[int]] = {}
    for shard, source in enumerate(validation.shards.sources):
        shards.setdefault(names[source], []).append(shard)
    parts = {name: validation.for_shards(own) for name, own in shards.items()}
    if len(parts) > 1:
        validation.parts = {name: part for name, part in parts.items() if part.num_rows}


def read_unseen(config: Config, tokenizer: Tokenizer, warn: Say) -> dict[str, PackedLoader]:
    """Rows of the texts that nothing is learnt from, by the names of their sources."""
    sources = config.data.unseen or []
    learnt = {source.path for source in build_sources(config.data.train)}
    for source in sources:
        if source.path in learnt:
            raise InputError(f"data.unseen holds {source.path}, which data.train learns from; give other texts")
    loaders = [_pack_unseen(config, source, tokenizer, warn) for source in sources]
    return dict(zip(name_sources(sources), loaders, strict=True))


def _pack_unseen(config: Config, source: SourceConfig, tokenizer: Tokenizer, warn: Say) -> PackedLoader:
    return pack_documents(
        read_texts(source, warn),
        tokenizer,
        row_length=config.data.max_length,
        rows_per_batch=_ROWS_PER_BATCH,
        shuffle=False,
    )


def describe_parts(evaluation: Evaluation) -> dict[str, Any]:
    """The figures of each source for final.json."""
    parts = {name: _describe(part) for name, part in evaluation.parts.items()}
    return {"sources": parts} if parts else {}


def measure_unseen(trainer: Trainer, unseen: Mapping[str, PackedLoader], token_counts: Tensor) -> dict[str, Any]:
    """The figures of texts that nothing was learnt from, beside those of the training text's frequencies."""
    world, found = trainer.world, {}
    for name, loader in unseen.items():
        evaluation = evaluate(
            trainer.model,
            loader.for_rank(world.rank, world.size).epoch(0),
            placed=trainer.engine.placed,
            world=world,
            micro_batches=trainer.evaluation_batches,
        )
        found[name] = _describe(evaluation) | {
            "unigram_loss": evaluate_unigram(trainer.model, loader.epoch(0), token_counts)
        }
    return {"unseen": found} if found else {}


def _describe(evaluation: Evaluation) -> dict[str, float]:
    return {
        "loss": evaluation.token_loss,
        "accuracy": evaluation.accuracy,
        "num_masked": evaluation.num_masked,
    }


def _name_sources(loader: PackedLoader, given: SourceLike | Sequence[SourceLike]) -> list[str]:
    if isinstance(loader.shards, PreparedShards):
        given = [SourceConfig(path=one.path or "source", name=one.name) for one in loader.shards.described]
    return name_sources(build_sources(given))


def _list_sources(config: Config, train: PackedLoader) -> list[MixingSource]:
    names = _name_sources(train, config.data.train)
    shards = train.shards
    described: Sequence[PreparedSource | SourceConfig] = (
        shards.described if isinstance(shards, PreparedShards) else build_sources(config.data.train)
    )
    return [MixingSource(name, one.weight, one.start) for name, one in zip(names, described, strict=True)]


def _count_rows(config: Config, train: PackedLoader) -> float:
    """The rows that the run will read, unless time ends it."""
    training = config.training
    most_steps = math.inf if training.max_steps is None else training.max_steps * train.rows_per_batch
    most_tokens = math.inf if training.max_tokens is None else training.max_tokens / train.row_length
    return min((training.epochs - training.initial_epoch) * train.num_rows, most_steps, most_tokens)
