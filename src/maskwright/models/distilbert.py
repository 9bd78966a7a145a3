"""DistilBERT (Sanh et al. 2019): BERT with half of its layers and without segments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from maskwright.models.bert import BERT, BertConfig
from maskwright.models.encoder import build_shape


@dataclass(frozen=True)
class DistilBertConfig(BertConfig):
    """The shape of a DistilBERT encoder, under BERT's names; config.json has its own for them."""

    num_hidden_layers: int = 6
    type_vocab_size: int = 0


class DistilBERT(BERT):
    """`from_variant`: `tiny` 2x256 or the published `base` 6x768."""

    config_class = DistilBertConfig
    variants: ClassVar = {
        "tiny": build_shape(2, 256, 4, intermediate_size=1024),
        "base": build_shape(6, 768, 12, intermediate_size=3072),
    }
