"""ALBERT (Lan et al. 2019): BERT whose layers share their weights, and narrow embeddings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import nn

from maskwright.errors import InputError
from maskwright.models.bert import BERT, BERT_FAMILY, BertConfig
from maskwright.models.family import TaskHeadLayout
from maskwright.models.products import RowLinear
from maskwright.models.shape import build_shape


@dataclass(frozen=True)
class AlbertConfig(BertConfig):
    """The shape of an ALBERT encoder, under Hugging Face's names and with its defaults."""

    vocab_size: int = 30000
    embedding_size: int = 128
    hidden_size: int = 4096
    num_attention_heads: int = 64
    intermediate_size: int = 16384
    num_hidden_groups: int = 1
    """Layers with their own weights; each is used for an equal number of consecutive layers."""
    hidden_act: str = "gelu_new"
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.embedding_size < 1:
            raise InputError(f"embedding_size is {self.embedding_size}; it must be at least 1")
        if not 1 <= self.num_hidden_groups <= self.num_hidden_layers:
            raise InputError(
                f"num_hidden_groups is {self.num_hidden_groups}; it must lie between 1 and the"
                f" {self.num_hidden_layers} layers"
            )


def _build_shape(layers: int, width: int, attn_heads: int) -> dict[str, Any]:
    return build_shape(layers, width, attn_heads, intermediate_size=4 * width)


ALBERT_FAMILY = BERT_FAMILY.derive(
    model_type="albert",
    architectures=("AlbertModel", "AlbertForMaskedLM"),
    prefix="albert",
    layer_prefix="encoder.albert_layer_groups.{}.albert_layers.0",
    modules={**BERT_FAMILY.modules, "embedding_projection": "encoder.embedding_hidden_mapping_in"},
    layer_modules={
        "attention.qkv": ("attention.query", "attention.key", "attention.value"),
        "attention.output": ("attention.dense",),
        "attention_norm": ("attention.LayerNorm",),
        "up": ("ffn",),
        "down": ("ffn_output",),
        "feed_forward_norm": ("full_layer_layer_norm",),
    },
    head_modules={
        "mlm_dense": "predictions.dense",
        "mlm_norm": "predictions.LayerNorm",
        "mlm_output": "predictions.decoder",
    },
    output_bias="predictions.bias",
    sequence_head=TaskHeadLayout(
        "AlbertForSequenceClassification",
        dense="albert.pooler",
        dropout_setting="classifier_dropout_prob",
        default_dropout=0.1,
    ),
    token_head=TaskHeadLayout(
        "AlbertForTokenClassification", dropout_setting="classifier_dropout_prob", default_dropout=0.1
    ),
    span_head=replace(BERT_FAMILY.span_head, architecture="AlbertForQuestionAnswering"),
    fixed_settings={**BERT_FAMILY.fixed_settings, "inner_group_num": 1},
    unused_settings=("down_scale_factor", "eos_token_ids", "gap_size", "net_structure_type", "num_memory_blocks"),
)


class ALBERT(BERT):
    """`from_variant`: `tiny` 4x256 and the published `base` 12x768, `large` 24x1024, `xlarge` and `xxlarge`."""

    family = ALBERT_FAMILY
    config_class = AlbertConfig
    variants: ClassVar = {
        "tiny": _build_shape(4, 256, 4),
        "base": _build_shape(12, 768, 12),
        "large": _build_shape(24, 1024, 16),
        "xlarge": _build_shape(24, 2048, 16),
        "xxlarge": _build_shape(12, 4096, 64),
    }

    @property
    def embedding_size(self) -> int:
        return int(self.config.embedding_size)

    @property
    def num_distinct_layers(self) -> int:
        return int(self.config.num_hidden_groups)

    def build_embedding_projection(self) -> nn.Module:
        return RowLinear(self.embedding_size, self.hidden_size)

    def layer_at(self, depth: int) -> nn.Module:
        return self.layers[depth * self.config.num_hidden_groups // self.config.num_hidden_layers]
