"""RoBERTa (Liu et al. 2019) and XLM-RoBERTa (Conneau et al. 2019): BERT with positions counted behind padding's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from maskwright.models.bert import BERT, BertConfig

_PUBLISHED: dict[str, Any] = {"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}


@dataclass(frozen=True)
class RobertaConfig(BertConfig):
    """The shape of a RoBERTa encoder, under Hugging Face's names and with its defaults."""

    vocab_size: int = 50265
    pad_token_id: int = 1


class RoBERTa(BERT):
    """`max_position_embeddings` counts two rows that no token reads: a model of 512 tokens has 514."""

    config_class = RobertaConfig
    variants: ClassVar = {name: {**shape, **_PUBLISHED} for name, shape in BERT.variants.items()}

    @property
    def first_position(self) -> int:
        return int(self.config.pad_token_id) + 1


class XLMRoBERTa(RoBERTa):
    """RoBERTa for a hundred languages: the same encoder under another name, with 250,002 tokens as published."""
