"""How each family of Hugging Face builds and names the head of its ...ForSequenceClassification."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from maskwright.errors import InputError
from maskwright.models.encoder import PackedEncoder
from maskwright.models.families import MODERNBERT_FAMILY, family_of
from maskwright.models.files.model_folder import CONFIG_FILE
from maskwright.tasks.task_head import HeadFiles, SequenceHead, SequenceHeadShape, SequenceTransform

_DEFAULT_DROPOUT = 0.1


@dataclass(frozen=True)
class SequenceLayout:
    architecture: str
    dense: str
    output: str
    activation: str = "tanh"
    drops_input: bool = False
    dropout_setting: str | None = "classifier_dropout"
    """Their name of the head's dropout; None: it is that of the hidden states."""
    default_dropout: float | None = None
    """Where the setting is not there; None: that of the hidden states."""


_LAYOUTS = {
    "bert": SequenceLayout("BertForSequenceClassification", "bert.pooler.dense", "classifier"),
    "roberta": SequenceLayout(
        "RobertaForSequenceClassification", "classifier.dense", "classifier.out_proj", drops_input=True
    ),
    "xlm-roberta": SequenceLayout(
        "XLMRobertaForSequenceClassification", "classifier.dense", "classifier.out_proj", drops_input=True
    ),
    "electra": SequenceLayout(
        "ElectraForSequenceClassification", "classifier.dense", "classifier.out_proj", "gelu", drops_input=True
    ),
    "mpnet": SequenceLayout(
        "MPNetForSequenceClassification",
        "classifier.dense",
        "classifier.out_proj",
        drops_input=True,
        dropout_setting=None,
    ),
    "distilbert": SequenceLayout(
        "DistilBertForSequenceClassification",
        "pre_classifier",
        "classifier",
        "relu",
        dropout_setting="seq_classif_dropout",
        default_dropout=0.2,
    ),
    "albert": SequenceLayout(
        "AlbertForSequenceClassification",
        "albert.pooler",
        "classifier",
        dropout_setting="classifier_dropout_prob",
        default_dropout=0.1,
    ),
    "modernbert": SequenceLayout(
        "ModernBertForSequenceClassification", "head.dense", "classifier", default_dropout=0.0
    ),
}
"""Dropout's defaults are those of the published configurations."""
SEQUENCE_ARCHITECTURE = "ForSequenceClassification"


def build_sequence_head(encoder: PackedEncoder, num_outputs: int, config: Mapping[str, Any]) -> SequenceHead:
    """A new head in the way of the encoder's family; `config` is the config.json it came with."""
    family = family_of(encoder)
    layout = _LAYOUTS[family.model_type]
    dropout = read_dropout(layout.dropout_setting, layout.default_dropout, encoder, config)
    modules = {"transform.dense": layout.dense, "transform.output": layout.output}
    settings: dict[str, Any] = {} if layout.dropout_setting is None else {layout.dropout_setting: dropout}
    if family is not MODERNBERT_FAMILY:
        shape = SequenceHeadShape(layout.activation, dropout=dropout, drops_input=layout.drops_input)
    else:
        shape = build_modernbert_shape(encoder, config, dropout)
        modules["transform.norm"] = "head.norm"
        settings |= {**describe_modernbert_shape(shape), "classifier_pooling": shape.pooling}
    files = HeadFiles(layout.architecture, modules, settings)
    transform = SequenceTransform(encoder.hidden_size, num_outputs, shape, encoder.config.initializer_range)
    return SequenceHead(transform, files, shape.pooling)


def build_modernbert_shape(encoder: PackedEncoder, config: Mapping[str, Any], dropout: float) -> SequenceHeadShape:
    """ModernBERT's own dense layer and norm before the logits, which all of its heads have."""
    return SequenceHeadShape(
        activation=str(config.get("classifier_activation", "gelu")),
        pooling=config.get("classifier_pooling", "cls"),
        dropout=dropout,
        has_dense_bias=bool(config.get("classifier_bias", False)),
        norm_eps=encoder.norm_eps,
        has_norm_bias=bool(encoder.config.norm_bias),
    )


def describe_modernbert_shape(shape: SequenceHeadShape) -> dict[str, Any]:
    """What config.json says of it, whatever the head."""
    return {"classifier_activation": shape.activation, "classifier_bias": shape.has_dense_bias}


def read_dropout(
    setting: str | None, default: float | None, encoder: PackedEncoder, config: Mapping[str, Any]
) -> float:
    """The dropout of a head, by their name of it; without a name or a default it is that of the hidden states."""
    given = None if setting is None else config.get(setting)
    if given is None:
        given = default
    if given is None:
        given = getattr(encoder.config, "hidden_dropout_prob", _DEFAULT_DROPOUT)
    if not isinstance(given, int | float) or isinstance(given, bool):
        raise InputError(f"{CONFIG_FILE}: '{setting}' is {given!r}; expected a number such as 0.1")
    return float(given)
