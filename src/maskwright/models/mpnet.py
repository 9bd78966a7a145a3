"""MPNet (Song et al. 2020): BERT whose attention also knows how far apart two tokens are.

B rows, S row length, H attention heads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from maskwright.batch import DocumentBounds, Documents
from maskwright.models.attention import AttentionMask, build_attention_mask
from maskwright.models.bert import BERT, BERT_FAMILY, BertConfig
from maskwright.models.documents import DocumentGroup
from maskwright.models.family import TaskHeadLayout

_FIRST_POSITION = 2
_NUM_BUCKETS = 32
_NUM_EXACT = 8
_FARTHEST = 128
"""Of the buckets on each side the first hold one distance each; those from the farthest on share the last."""


@dataclass(frozen=True)
class MPNetConfig(BertConfig):
    """The shape of an MPNet encoder, under Hugging Face's names and with its defaults."""

    vocab_size: int = 30527
    type_vocab_size: int = 0
    pad_token_id: int = 1


MPNET_FAMILY = BERT_FAMILY.derive(
    model_type="mpnet",
    architectures=("MPNetModel", "MPNetForMaskedLM"),
    prefix="mpnet",
    modules={**BERT_FAMILY.modules, "distance_bias": "encoder.relative_attention_bias"},
    layer_modules={
        **BERT_FAMILY.layer_modules,
        "attention.qkv": ("attention.attn.q", "attention.attn.k", "attention.attn.v"),
        "attention.output": ("attention.attn.o",),
        "attention_norm": ("attention.LayerNorm",),
    },
    head_modules={"mlm_dense": "lm_head.dense", "mlm_norm": "lm_head.layer_norm", "mlm_output": "lm_head.decoder"},
    output_bias="lm_head.bias",
    head_activation="gelu",
    sequence_head=TaskHeadLayout(
        "MPNetForSequenceClassification",
        "classifier.out_proj",
        dense="classifier.dense",
        drops_input=True,
        dropout_setting=None,
    ),
    token_head=TaskHeadLayout("MPNetForTokenClassification", dropout_setting=None),
    span_head=replace(BERT_FAMILY.span_head, architecture="MPNetForQuestionAnswering"),
    fixed_settings={**BERT_FAMILY.fixed_settings, "relative_attention_num_buckets": _NUM_BUCKETS},
    unwritten_settings=("type_vocab_size",),
)


class MPNet(BERT):
    """`max_position_embeddings` counts two rows that no token reads: a model of 512 tokens has 514."""

    family = MPNET_FAMILY
    config_class = MPNetConfig
    adds_scores: ClassVar = True
    variants: ClassVar = {
        name: {**shape, "max_position_embeddings": 514, "layer_norm_eps": 1e-5} for name, shape in BERT.variants.items()
    }

    def __init__(self, config: MPNetConfig) -> None:
        super().__init__(config)
        self.distance_bias = nn.Embedding(_NUM_BUCKETS, config.num_attention_heads)
        nn.init.normal_(self.distance_bias.weight, std=config.initializer_range)

    @property
    def first_position(self) -> int:
        return _FIRST_POSITION

    def run_layers(
        self, hidden: Tensor, positions: Tensor, document_ids: Documents, is_causal: Tensor | None = None
    ) -> Tensor:
        assert not isinstance(document_ids, DocumentBounds), "flat rows have no kernel for scores"
        documents = self.find_groups(hidden, document_ids, is_causal)
        scores: AttentionMask = (
            self._score(positions, build_attention_mask(document_ids, is_causal))
            if documents is None
            else documents.narrow(self._score_group)
        )
        for layer in self.layers:
            hidden = self.run_layer(layer, hidden, scores)
        return hidden

    def _score(self, positions: Tensor, may_attend: Tensor | None) -> Tensor:
        """(B, H, S, S), or (H, S, S) for rows of one layout"""
        distances = positions[..., None, :] - positions[..., :, None]
        scores: Tensor = self.distance_bias(bucket_distances(distances)).movedim(-1, -3)
        return scores if may_attend is None else torch.where(may_attend, scores, float("-inf"))

    def _score_group(self, group: DocumentGroup) -> Tensor:
        return self._score(torch.arange(group.length)[None], group.attention_mask)


def bucket_distances(distances: Tensor) -> Tensor:
    """T5's buckets (Raffel et al. 2019): half for tokens behind, half for those ahead.

    Of each half, near distances have a bucket of their own and farther ones share, by their logarithm.
    """
    num_sided = _NUM_BUCKETS // 2
    size = distances.abs()
    growth = torch.log(size.clamp(min=1).float() / _NUM_EXACT) / math.log(_FARTHEST / _NUM_EXACT)
    shared = _NUM_EXACT + (growth * (num_sided - _NUM_EXACT)).long()
    bucket = torch.where(size < _NUM_EXACT, size, shared.clamp(max=num_sided - 1))
    return bucket + num_sided * (distances > 0)
