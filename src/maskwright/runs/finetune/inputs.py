"""From the settings of a task to what a model learns from: an encoder, its tokenizer, and loaders of examples."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from maskwright.batch import PackedBatch
from maskwright.errors import InputError
from maskwright.models.any_encoder import count_tokens, find_max_length
from maskwright.models.family import State
from maskwright.models.files.model_folder import find_task_architecture, resolve_folder
from maskwright.models.transformers_encoder import TransformersEncoder, TunedEncoder
from maskwright.runs.finetune.teaching import ask_teacher
from maskwright.runs.inputs import open_tokenizer
from maskwright.runs.texts import Say
from maskwright.suggestions import name_option, suggest
from maskwright.tasks.config import TaskConfig
from maskwright.tasks.features import Features
from maskwright.tasks.foreign import find_missing_class
from maskwright.tasks.heads import TaskHead
from maskwright.tasks.hold_out import find_missing_labels, hold_out, hold_out_groups, read_groups
from maskwright.tasks.kinds import ExampleSource, TaskKind, check_own_settings, find_kind
from maskwright.tasks.labels import list_names
from maskwright.tasks.loader import TaskLoader
from maskwright.tasks.lora import check_installed
from maskwright.tasks.model import TaskModel
from maskwright.tasks.new_model import Pretrained, build_new, load_pretrained
from maskwright.tasks.nlp_heads import NLPHead, check_head
from maskwright.tasks.sequence.taught import add_answers
from maskwright.tasks.tables import Table
from maskwright.tasks.task import Task
from maskwright.text.tokenizer.tokenizer import Tokenizer

_UNSTATED_LENGTH = 512
"""Tokens of the longest example for an encoder that does not say what it takes."""


@dataclass(frozen=True)
class GivenInputs:
    """What a caller has in memory, where the configuration has no more than a name for it."""

    train: Table | None = None
    validation: Table | None = None
    model_folder: Path | None = None
    """Where the encoder and its tokenizer were written to."""
    encoder: nn.Module | None = None
    """One of the caller's own, which no folder can hold."""
    pretrained: Pretrained | None = None
    """What the named folder holds, where it was read before; runs take copies."""
    tokenizer: Tokenizer | None = None
    """Of that encoder."""
    task_head: NLPHead | None = None
    """Takes the place of the head that encoders of the family have."""


@dataclass(frozen=True)
class TaskInputs:
    """What all seeds of a run share."""

    config: TaskConfig
    kind: TaskKind
    task: Task
    tokenizer: Tokenizer
    train: TaskLoader
    validation: TaskLoader
    held_out: ExampleSource
    """What `validation` was read from."""
    fingerprint: str
    """Changes with the examples and the tokenizer, so that a run is not resumed on others."""
    encoder: TunedEncoder
    """Or a module of the caller's own."""
    encoder_config: dict[str, Any]
    weights: State
    given_head: NLPHead | None = None

    @property
    def metric(self) -> str:
        return self.config.metric or self.task.choose_metric(self.validation.features.examples)

    def build_model(self, seed: int, say: Say = lambda text: None) -> TaskModel:
        """The encoder with a new head; the seed decides what is new, and what was made of it is said."""
        config = self.config
        torch.manual_seed(seed)
        described = {**self.encoder_config, **self.task.describe()}
        if isinstance(self.encoder, TransformersEncoder):  # heads that find the end of a question look for it
            described["sep_token_id"] = self.tokenizer.sep_token_id
        folder = Path(config.model)
        encoder: TunedEncoder
        task_head: TaskHead
        if self.given_head is not None:
            encoder, task_head = copy.deepcopy(self.encoder), copy.deepcopy(self.given_head)
        else:
            encoder, task_head = build_new(self.kind, self.task, self.encoder, described, self.weights, folder)
        if task_head.output is not None:
            self.task.prepare_head(task_head.output, self.train.targets)
        note = task_head.prepare(encoder, self._list_first_batches())
        if note is not None:
            say(note)
        model = TaskModel(encoder, task_head, copy.deepcopy(self.task), config.layer_decay)
        if config.lora is not None:
            model.add_adapters(config.lora)
        if config.freeze_layers is not None:
            model.freeze_layers(config.freeze_layers)
        model.compute_rate_factors()  # a decay that the encoder cannot have is said before the run begins
        return model

    def _list_first_batches(self) -> Iterator[PackedBatch]:
        """Of the training examples, in the order of their file."""
        num_examples, size = len(self.train.features.examples), self.config.batch_size
        for start in range(0, num_examples, size):
            yield self.train.build_batch(np.arange(start, min(start + size, num_examples)))


def load_task_inputs(
    config: TaskConfig, say: Say, given: GivenInputs | None = None, device: torch.device | str = "cpu"
) -> TaskInputs:
    """Read, check and tokenize everything; what was guessed and left out is said. A teacher is asked on the device."""
    kind = find_kind(config.task)
    check_own_settings(config)
    if config.lora is not None:
        check_installed()
    given = given or GivenInputs()
    files = _read_files(kind, config, given, say)
    task = kind.from_examples(files[0].examples, config)
    _check_metric(task, config.metric)
    if given.task_head is not None:
        check_head(given.task_head, config.task, task)
    for file in files:
        task.check_examples(file.examples)  # unknown labels are said before the model is read
    model = str(given.model_folder or config.model)
    encoder_config: dict[str, Any] = {}
    weights: State = {}
    if given.encoder is not None:
        encoder = cast(TunedEncoder, given.encoder)
    else:
        encoder, encoder_config, weights = given.pretrained or load_pretrained(resolve_folder(model))
        _say_fine_tuned(config.model, encoder_config, say)
    if given.task_head is None:
        _say_own_head(kind, encoder, say)
    tokenizer = given.tokenizer or open_tokenizer(model)
    _check_vocabulary(tokenizer, encoder, config.model)
    if task.max_length is not None and given.tokenizer is None:
        tokenizer.model_max_length = None  # that of an earlier training
    task.read_tokenizer(tokenizer)
    max_length = _choose_max_length(config, encoder)
    features = [kind.featurize(file.examples, tokenizer, max_length, config) for file in files]
    is_padded = isinstance(encoder, TransformersEncoder)
    targets = [task.encode_targets(one.examples) for one in features]
    if config.teacher is not None:
        targets[0] = add_answers(targets[0], ask_teacher(config, task, features[0].examples, device, say))
    train, validation = (
        kind.loader(
            one,
            targets[number],
            tokenizer,
            batch_size=config.batch_size,
            shuffle=not number,
            groups_lengths=is_padded,
        )
        for number, one in enumerate(features)
    )
    for name, file, one in zip(("train", "held out"), files, features, strict=True):
        say(f"{name}: {file.describe()}")
        _say_losses(name, one, max_length, say)
    say(f"labels: {task.describe_labels(train.targets)}")
    fingerprint = _hash_examples(features, tokenizer)
    return TaskInputs(
        config,
        kind,
        task,
        tokenizer,
        train,
        validation,
        files[1],
        fingerprint,
        encoder,
        encoder_config,
        weights,
        given.task_head,
    )


def _read_files(kind: TaskKind, config: TaskConfig, given: GivenInputs, say: Say) -> list[ExampleSource]:
    """What to learn from, and what is held out."""
    train = kind.read(given.train or config.train, config)
    validation = given.validation or config.validation
    if validation is None and config.group_by is not None:
        return _hold_out_groups(train, given.train or config.train, config.group_by, say)
    if validation is None:
        left, held_out = hold_out(train)
        say(
            f"no held-out examples are given, so {len(held_out.examples):,} of the {len(train.examples):,} are held out"
            f" of training, of each label alike; {name_option('validation')} names others"
        )
        _say_missing_labels(train, held_out, say)
        return [left, held_out]
    if config.group_by is not None:
        raise InputError(
            f"{name_option('group_by')} is for examples that are held out of training, and {name_option('validation')}"
            " names others; give one of the two"
        )
    files = [train, kind.read(validation, config)]
    files[0].check_same_form(files[1])
    return files


def _hold_out_groups(train: ExampleSource, source: str | Table, column: str, say: Say) -> list[ExampleSource]:
    groups = read_groups(source, column)
    if any(example.place not in groups for example in train.examples):
        raise InputError(f"the examples of {train.path} are not told apart by their records; give one file to group")
    left, held_out = hold_out_groups(train, groups)
    found = {str(groups[example.place]) for example in train.examples if groups[example.place] is not None}
    taken = {str(groups[example.place]) for example in held_out.examples if groups[example.place] is not None}
    say(
        f"no held-out examples are given, so {len(held_out.examples):,} of the {len(train.examples):,} are held out of"
        f" training: all those of {len(taken):,} of the {len(found):,} values of '{column}', of each label about alike;"
        f" {name_option('validation')} names others"
    )
    _say_missing_labels(train, held_out, say)
    return [left, held_out]


def _say_missing_labels(train: ExampleSource, held_out: ExampleSource, say: Say) -> None:
    missing = find_missing_labels(train.examples, held_out.examples)
    if missing:
        say(
            f"no example of the label {list_names(missing)} is held out (too few texts or groups), so the scores say"
            " nothing about it"
        )


def _say_fine_tuned(name: str, encoder_config: Mapping[str, Any], say: Say) -> None:
    architecture = find_task_architecture(encoder_config)
    if architecture is not None:
        say(f"{name} holds {architecture}, fine-tuned before: its last layer is replaced by a new one")


def _say_own_head(kind: TaskKind, encoder: TunedEncoder, say: Say) -> None:
    missing = find_missing_class(kind, encoder) if isinstance(encoder, TransformersEncoder) else None
    if missing is not None:
        say(
            f"transformers has no {missing}: the head is Maskwright's own, and transformers reads the encoder of the"
            " model alone (AutoModel)"
        )


def _check_metric(task: Task, metric: str | None) -> None:
    known = [name for name in task.compute_metrics([0.0] * (2 + task.num_figures)) if name != "loss"]
    if metric is not None and metric not in known:
        raise InputError(f"--metric is '{metric}', which this task does not have{suggest(metric, known)}")


def _check_vocabulary(tokenizer: Tokenizer, encoder: nn.Module, model: str) -> None:
    num_tokens = count_tokens(encoder)
    if tokenizer.vocab_size > num_tokens > 0:
        raise InputError(
            f"the tokenizer of {model} has {tokenizer.vocab_size} tokens, its encoder {num_tokens}; the two do not"
            " belong together"
        )


def _choose_max_length(config: TaskConfig, encoder: nn.Module) -> int:
    limit = find_max_length(encoder)
    if config.max_length is None:
        return limit or _UNSTATED_LENGTH
    if limit is not None and config.max_length > limit:
        raise InputError(f"--max-length is {config.max_length}, {config.model} takes {limit}; lower it")
    return config.max_length


def _say_losses(name: str, features: Features, max_length: int, say: Say) -> None:
    if features.num_cut:
        say(f"{name}: {features.num_cut:,} examples have more than {max_length} tokens and lose their end")
    if features.num_empty:
        say(f"{name}: {features.num_empty:,} examples have no token in a text and are left out")
    for note in features.notes:
        say(f"{name}: {note}")


def _hash_examples(features: Sequence[Features], tokenizer: Tokenizer) -> str:
    digest = hashlib.blake2b(tokenizer.backend.to_str().encode(), digest_size=16)
    for one in features:
        for example in one.examples:
            for part in example.content:
                digest.update(repr(part).encode(errors="surrogatepass") + b"\0")
    return digest.hexdigest()
