"""RoBERTa (Liu et al. 2019) and XLM-RoBERTa (Conneau et al. 2019): BERT with positions counted behind padding's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from maskwright.models.bert import BERT, BERT_FAMILY, BertConfig
from maskwright.models.family import TaskHeadLayout

_PUBLISHED: dict[str, Any] = {"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}


@dataclass(frozen=True)
class RobertaConfig(BertConfig):
    """The shape of a RoBERTa encoder, under Hugging Face's names and with its defaults."""

    vocab_size: int = 50265
    pad_token_id: int = 1


ROBERTA_FAMILY = BERT_FAMILY.derive(
    model_type="roberta",
    architectures=("RobertaModel", "RobertaForMaskedLM"),
    prefix="roberta",
    head_modules={"mlm_dense": "lm_head.dense", "mlm_norm": "lm_head.layer_norm", "mlm_output": "lm_head.decoder"},
    output_bias="lm_head.bias",
    head_activation="gelu",
    sequence_head=TaskHeadLayout(
        "RobertaForSequenceClassification", "classifier.out_proj", dense="classifier.dense", drops_input=True
    ),
    token_head=TaskHeadLayout("RobertaForTokenClassification"),
    span_head=replace(BERT_FAMILY.span_head, architecture="RobertaForQuestionAnswering"),
)

XLM_ROBERTA_FAMILY = ROBERTA_FAMILY.derive(
    model_type="xlm-roberta",
    architectures=("XLMRobertaModel", "XLMRobertaForMaskedLM"),
    sequence_head=replace(ROBERTA_FAMILY.sequence_head, architecture="XLMRobertaForSequenceClassification"),
    token_head=replace(ROBERTA_FAMILY.token_head, architecture="XLMRobertaForTokenClassification"),
    span_head=replace(ROBERTA_FAMILY.span_head, architecture="XLMRobertaForQuestionAnswering"),
)


class RoBERTa(BERT):
    """`max_position_embeddings` counts two rows that no token reads: a model of 512 tokens has 514."""

    family = ROBERTA_FAMILY
    config_class = RobertaConfig
    variants: ClassVar = {name: {**shape, **_PUBLISHED} for name, shape in BERT.variants.items()}

    @property
    def first_position(self) -> int:
        return int(self.config.pad_token_id) + 1


class XLMRoBERTa(RoBERTa):
    """RoBERTa for a hundred languages: the same encoder under another name, with 250,002 tokens as published."""

    family = XLM_ROBERTA_FAMILY
