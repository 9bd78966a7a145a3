"""Tasks on encoders that only `transformers` knows, with the head of its class for the task.

A family without such a class gets our own head on its hidden states. Such a folder is read by Maskwright; `AutoModel`
reads the encoder in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor

from maskwright.errors import InputError
from maskwright.models.files.model_folder import (
    CONFIG_FILE,
    OWN_TYPE_PREFIX,
    WEIGHTS_FILE,
    load_into,
    read_own_settings,
)
from maskwright.models.transformers_encoder import TransformersEncoder
from maskwright.models.transformers_model import ENCODER, describe_config, find_output_name, load_transformers_class
from maskwright.tasks.heads import (
    SEQUENCE_ARCHITECTURE,
    SPAN_ARCHITECTURE,
    TOKEN_ARCHITECTURE,
    Answered,
    HeadFiles,
    SequenceHead,
    SequenceHeadShape,
    SequenceTransform,
    TaskHead,
    TokenHead,
    TokenTransform,
)
from maskwright.tasks.kinds import SEQUENCE_CLASSES, SPAN_CLASSES, TOKEN_CLASSES, TaskKind
from maskwright.tasks.lora import list_plain
from maskwright.tasks.nlp_heads import SETTINGS_PART as NLP_HEAD_PART
from maskwright.tasks.nlp_heads import load_nlp_head

_ENDINGS = {
    SEQUENCE_CLASSES: SEQUENCE_ARCHITECTURE,
    TOKEN_CLASSES: TOKEN_ARCHITECTURE,
    SPAN_CLASSES: SPAN_ARCHITECTURE,
}
_USUAL_DROPOUT = 0.1


def load_foreign_encoder(config: Mapping[str, Any], weights: Mapping[str, Tensor], folder: Path) -> TransformersEncoder:
    """The encoder alone, as `AutoModel` has it; it shares memory with `weights`."""
    model = load_transformers_class(config, weights, folder, ENCODER)
    if model is None:
        raise InputError(
            f"{folder / CONFIG_FILE} has model_type '{config['model_type']}', for which transformers has no encoder;"
            " take a model that AutoModel loads"
        )
    return TransformersEncoder(model, folder).eval()


def find_missing_class(kind: TaskKind, encoder: TransformersEncoder) -> str | None:
    """The name that transformers' class for the task would have, if there is no such class; else None."""
    has_class = type(encoder.config) in getattr(import_module("transformers"), kind.their_classes)
    return None if has_class else _name_class(kind.their_classes, encoder)


def _name_class(classes: str, encoder: TransformersEncoder) -> str:
    return f"{type(encoder.base_model).__name__.removesuffix('Model')}{_ENDINGS[classes]}"


def build_foreign(
    kind: TaskKind,
    num_outputs: int,
    config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    folder: Path,
    is_new: bool = False,
) -> tuple[TransformersEncoder, TaskHead]:
    """The encoder and the task head with their weights; if `is_new`, the last layer and missing weights are
    initialised.
    """
    if own := read_own_settings(config, NLP_HEAD_PART):
        encoder = load_foreign_encoder(config, weights, folder)
        given_head = load_nlp_head(own, encoder.hidden_size)
        _fill_head(given_head, weights, folder)
        return encoder, given_head
    if kind.their_classes == ENCODER:
        encoder = load_foreign_encoder(config, weights, folder)
        return encoder, kind.build_head(encoder, num_outputs, config)
    model = load_transformers_class(config, weights, folder, kind.their_classes, num_outputs, has_new_output=is_new)
    if model is None:
        encoder = load_foreign_encoder(config, weights, folder)
        task_head = _build_own_head(kind.their_classes, encoder, num_outputs)
        if not is_new:
            _fill_head(task_head, weights, folder)
        return encoder, task_head
    files = HeadFiles(type(model).__name__, {}, {})
    answered = Answered(model.get_submodule(find_output_name(model, num_outputs)))
    head_class = SequenceHead if kind.their_classes == SEQUENCE_CLASSES else TokenHead
    return TransformersEncoder(model, folder), head_class(answered, files)


def has_own_head(task_head: TaskHead) -> bool:
    """Whether the head is our own on an encoder of transformers, which has none for the task."""
    return task_head.files.architecture.startswith(OWN_TYPE_PREFIX)


def _build_own_head(classes: str, encoder: TransformersEncoder, num_outputs: int) -> TaskHead:
    """A head like that of BERT and RoBERTa, which most families have."""
    architecture = f"{OWN_TYPE_PREFIX}{_name_class(classes, encoder)}"
    given = getattr(encoder.config, "hidden_dropout_prob", None)
    dropout = float(given) if isinstance(given, int | float) else _USUAL_DROPOUT
    initializer_range = float(getattr(encoder.config, "initializer_range", 0.02))
    if classes == SEQUENCE_CLASSES:
        shape = SequenceHeadShape(dropout=dropout, drops_input=True)
        modules = {"transform.dense": "classifier.dense", "transform.output": "classifier.out_proj"}
        transform = SequenceTransform(encoder.hidden_size, num_outputs, shape, initializer_range)
        return SequenceHead(transform, HeadFiles(architecture, modules, {}))
    is_span = classes == SPAN_CLASSES
    modules = {"transform.output": "qa_outputs" if is_span else "classifier"}
    per_token = TokenTransform(encoder.hidden_size, num_outputs, 0.0 if is_span else dropout, initializer_range)
    return TokenHead(per_token, HeadFiles(architecture, modules, {}))


def describe_foreign(encoder: TransformersEncoder, task_head: TaskHead) -> dict[str, Any]:
    """config.json without the task."""
    model = encoder.model
    config = describe_config(model) | {"architectures": [task_head.files.architecture]}
    if hasattr(model.config, "type_vocab_size"):  # left out of their file where it is the default
        config["type_vocab_size"] = model.config.type_vocab_size
    return config


def name_foreign(encoder: TransformersEncoder, task_head: TaskHead) -> dict[str, str]:
    """Names in their file by names in the encoder; for tied weights the one that is stored."""
    model = encoder.model
    state, ties = list_plain(model.state_dict(keep_vars=True)), dict(model.all_tied_weights_keys)
    tied = {name for name, other in ties.items() if other in state and state.get(name) is state[other]}
    prefix = f"{model.base_model_prefix}." if task_head.files.modules else ""
    return {f"model.{name}": f"{prefix}{name}" for name in state if name not in tied}


def _fill_head(task_head: TaskHead, weights: Mapping[str, Tensor], folder: Path) -> None:
    names = task_head.name_weights()
    state = {ours: weights[theirs] for ours, theirs in names.items() if theirs in weights}
    load_into(task_head, state, folder / WEIGHTS_FILE)
