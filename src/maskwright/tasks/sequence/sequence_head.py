"""Logits of whole texts, in the way of each family's ...ForSequenceClassification in transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from maskwright.errors import InputError
from maskwright.models.encoder import PackedEncoder
from maskwright.models.family import TaskHeadLayout
from maskwright.models.files.model_folder import CONFIG_FILE
from maskwright.tasks.task_head import HeadFiles, SequenceHead, SequenceHeadShape, SequenceTransform

_DEFAULT_DROPOUT = 0.1
SEQUENCE_ARCHITECTURE = "ForSequenceClassification"


def build_sequence_head(encoder: PackedEncoder, num_outputs: int, config: Mapping[str, Any]) -> SequenceHead:
    """A new head in the way of the encoder's family; `config` is the config.json it came with."""
    transform, files = build_dense_transform(encoder, num_outputs, encoder.family.sequence_head, config)
    return SequenceHead(transform, files, transform.shape.pooling)


def build_dense_transform(
    encoder: PackedEncoder, num_outputs: int, layout: TaskHeadLayout, config: Mapping[str, Any]
) -> tuple[SequenceTransform, HeadFiles]:
    """A dense layer and the logits as a layout has them, and how its files name them."""

    def read(name: str) -> Any:
        usual = getattr(layout, name)
        return config.get(layout.settings[name], usual) if name in layout.settings else usual

    dropout = read_dropout(layout, encoder, config)
    shape = SequenceHeadShape(
        activation=str(read("activation")),
        pooling=read("pooling"),
        dropout=dropout,
        drops_input=layout.drops_input,
        has_dense_bias=bool(read("has_dense_bias")),
        norm_eps=None if layout.norm is None else encoder.norm_eps,
        has_norm_bias=layout.norm is not None and encoder.mlm_norm_bias,
    )
    theirs = {"transform.dense": layout.dense, "transform.output": layout.output, "transform.norm": layout.norm}
    settings: dict[str, Any] = {} if layout.dropout_setting is None else {layout.dropout_setting: dropout}
    settings |= {name: getattr(shape, ours) for ours, name in layout.settings.items()}
    modules = {ours: name for ours, name in theirs.items() if name is not None}
    transform = SequenceTransform(encoder.hidden_size, num_outputs, shape, encoder.config.initializer_range)
    return transform, HeadFiles(layout.architecture, modules, settings)


def read_dropout(layout: TaskHeadLayout, encoder: PackedEncoder, config: Mapping[str, Any]) -> float:
    """The dropout of a head, as config.json says; without a setting or a default it is that of the hidden states."""
    setting = layout.dropout_setting
    given = None if setting is None else config.get(setting)
    if given is None:
        given = layout.default_dropout
    if given is None:
        given = getattr(encoder.config, "hidden_dropout_prob", _DEFAULT_DROPOUT)
    if not isinstance(given, int | float) or isinstance(given, bool):
        raise InputError(f"{CONFIG_FILE}: '{setting}' is {given!r}; expected a number such as 0.1")
    return float(given)
