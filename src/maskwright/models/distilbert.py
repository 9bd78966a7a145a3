"""DistilBERT (Sanh et al. 2019): BERT with half of its layers and without segments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from maskwright.models.bert import BERT, BERT_FAMILY, BertConfig
from maskwright.models.family import TaskHeadLayout
from maskwright.models.shape import build_shape


@dataclass(frozen=True)
class DistilBertConfig(BertConfig):
    """The shape of a DistilBERT encoder, under BERT's names; config.json has its own for them."""

    num_hidden_layers: int = 6
    type_vocab_size: int = 0


DISTILBERT_FAMILY = BERT_FAMILY.derive(
    model_type="distilbert",
    architectures=("DistilBertModel", "DistilBertForMaskedLM"),
    prefix="distilbert",
    layer_prefix="transformer.layer.{}",
    layer_modules={
        "attention.qkv": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        "attention.output": ("attention.out_lin",),
        "attention_norm": ("sa_layer_norm",),
        "up": ("ffn.lin1",),
        "down": ("ffn.lin2",),
        "feed_forward_norm": ("output_layer_norm",),
    },
    head_modules={"mlm_dense": "vocab_transform", "mlm_norm": "vocab_layer_norm", "mlm_output": "vocab_projector"},
    output_bias="vocab_projector.bias",
    sequence_head=TaskHeadLayout(
        "DistilBertForSequenceClassification",
        dense="pre_classifier",
        activation="relu",
        dropout_setting="seq_classif_dropout",
        default_dropout=0.2,
    ),
    token_head=TaskHeadLayout("DistilBertForTokenClassification", dropout_setting=None),
    span_head=TaskHeadLayout(
        "DistilBertForQuestionAnswering", "qa_outputs", dropout_setting="qa_dropout", default_dropout=0.1
    ),
    setting_names={
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
    },
    unwritten_settings=("type_vocab_size", "layer_norm_eps"),
    unused_settings=("sinusoidal_pos_embds",),
)
"""Dropout's defaults are those of the published configurations, here and in the other families."""


class DistilBERT(BERT):
    """`from_variant`: `tiny` 2x256 or the published `base` 6x768."""

    family = DISTILBERT_FAMILY
    config_class = DistilBertConfig
    variants: ClassVar = {
        "tiny": build_shape(2, 256, 4, intermediate_size=1024),
        "base": build_shape(6, 768, 12, intermediate_size=3072),
    }
