"""ELECTRA's encoders (Clark et al. 2020): BERT with embeddings that may be narrower than the layers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import nn

from maskwright.errors import InputError
from maskwright.models.bert import BERT, BERT_FAMILY, BertConfig
from maskwright.models.family import TaskHeadLayout
from maskwright.models.products import RowLinear
from maskwright.models.shape import build_shape


@dataclass(frozen=True)
class ElectraConfig(BertConfig):
    """The shape of an ELECTRA encoder, under Hugging Face's names and with its defaults."""

    embedding_size: int = 128
    hidden_size: int = 256
    num_attention_heads: int = 4
    intermediate_size: int = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.embedding_size < 1:
            raise InputError(f"embedding_size is {self.embedding_size}; it must be at least 1")


ELECTRA_FAMILY = BERT_FAMILY.derive(
    model_type="electra",
    architectures=("ElectraModel", "ElectraForMaskedLM"),
    prefix="electra",
    modules={**BERT_FAMILY.modules, "embedding_projection": "embeddings_project"},
    head_modules={
        "mlm_dense": "generator_predictions.dense",
        "mlm_norm": "generator_predictions.LayerNorm",
        "mlm_output": "generator_lm_head",
    },
    output_bias="generator_lm_head.bias",
    head_activation="gelu",
    sequence_head=TaskHeadLayout(
        "ElectraForSequenceClassification",
        "classifier.out_proj",
        dense="classifier.dense",
        activation="gelu",
        drops_input=True,
    ),
    token_head=TaskHeadLayout("ElectraForTokenClassification"),
    span_head=replace(BERT_FAMILY.span_head, architecture="ElectraForQuestionAnswering"),
)


class ELECTRA(BERT):
    """`from_variant`: the published discriminators `small` 12x256, `base` 12x768 and `large` 24x1024, and `tiny`."""

    family = ELECTRA_FAMILY
    config_class = ElectraConfig
    variants: ClassVar = {
        "tiny": build_shape(4, 256, 4, intermediate_size=1024) | {"embedding_size": 128},
        "small": build_shape(12, 256, 4, intermediate_size=1024) | {"embedding_size": 128},
        "base": build_shape(12, 768, 12, intermediate_size=3072) | {"embedding_size": 768},
        "large": build_shape(24, 1024, 16, intermediate_size=4096) | {"embedding_size": 1024},
    }

    @property
    def embedding_size(self) -> int:
        return int(self.config.embedding_size)

    def build_embedding_projection(self) -> nn.Module:
        is_same = self.embedding_size == self.hidden_size
        return nn.Identity() if is_same else RowLinear(self.embedding_size, self.hidden_size)
