"""The small masked language model that proposes replacements (Clark et al. 2020, ELECTRA), and how they are drawn.

It shares the discriminator's embeddings for input and output, so it has only layers and a head. B rows, S row length, D
the discriminator's width, M slots, V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskwright.batch import PackedBatch
from maskwright.errors import InputError
from maskwright.models.encoder import FAMILIES, PackedEncoder
from maskwright.models.layers import Dropout, LayerNorm, init_weights
from maskwright.randomness import random_uint32

_UNIFORM_BITS = 24
"""fp32 holds this many bits exactly, so that a number below 1 stays below 1."""


class Generator(nn.Module):
    """Layers of the discriminator's family at a share of its size, between its embeddings and their table."""

    def __init__(
        self,
        encoder: PackedEncoder,
        vocab_size: int,
        size: float,
        num_layers: int,
        initializer_range: float,
        layer_norm_eps: float,
        head_dropout: float,
    ) -> None:
        super().__init__()
        self.encoder_layers = build_layers(encoder, compute_generator_config(encoder.config, size, num_layers))
        outer, inner, bias = encoder.hidden_size, self.encoder_layers.hidden_size, encoder.mlm_head_bias
        self.projection = nn.Identity() if inner == outer else nn.Linear(outer, inner, bias=bias)
        self.dense = nn.Linear(inner, outer, bias=bias)
        self.activation = nn.GELU()
        self.dropout = Dropout(head_dropout)
        self.norm = LayerNorm(outer, eps=layer_norm_eps, bias=encoder.mlm_norm_bias)
        self.output_bias = nn.Parameter(encoder.get_input_embeddings().weight.new_zeros(vocab_size))
        for part in (self.projection, self.dense, self.norm):
            init_weights(part, initializer_range)

    def forward(self, embedded: Tensor, batch: PackedBatch) -> Tensor:
        """Hidden states (B, S, the generator's width) of the embedded tokens (B, S, D) of a batch."""
        return self.encoder_layers.run_layers(self.projection(embedded), batch.positions, batch.document_ids)

    def predict(self, hidden: Tensor, table: Tensor) -> Tensor:
        """Vocabulary logits (..., V); the table of word embeddings (V or more, D) is the output's weight."""
        features = self.norm(self.dropout(self.activation(self.dense(hidden))))
        return F.linear(features, table[: len(self.output_bias)], self.output_bias)


def compute_generator_config(config: Any, size: float, num_layers: int) -> Any:
    """The generator's configuration: a share of the attention heads and of the widths; the head size stays."""
    head_size = config.hidden_size // config.num_attention_heads
    num_attn_heads = max(1, round(size * config.num_attention_heads))
    share = num_attn_heads / config.num_attention_heads
    return replace(
        config,
        hidden_size=num_attn_heads * head_size,
        num_attention_heads=num_attn_heads,
        intermediate_size=max(1, round(share * config.intermediate_size)),
        num_hidden_layers=num_layers,
    )


def build_layers(encoder: PackedEncoder, config: Any) -> PackedEncoder:
    """An encoder of the same family without embeddings, which would be unused weights."""
    layers = find_family_class(encoder)(config)
    for part in encoder.family.embedding_parts:
        delattr(layers, part)
    return layers


def find_family_class(encoder: nn.Module) -> type[PackedEncoder]:
    """The encoder's class, if its layers can run on the embeddings of another encoder."""
    known = [encoder_class for encoder_class in FAMILIES.values() if encoder_class.family.embedding_parts]
    for encoder_class in known:
        if type(encoder) is encoder_class:
            return encoder_class
    names = " or ".join(encoder_class.__name__ for encoder_class in known)
    raise InputError(
        f"the encoder is a {type(encoder).__name__}; replaced-token detection shares an encoder's embeddings, so it"
        f" needs a {names} of maskwright"
    )


def draw_uniform(key: int, sample_ids: Tensor, positions: Tensor) -> Tensor:
    """Numbers in [0, 1), a function of the key, the sample and the position alone."""
    bits = random_uint32(key, sample_ids, positions) >> (32 - _UNIFORM_BITS)
    return bits.float() * 2.0**-_UNIFORM_BITS


@torch.no_grad()
def sample_tokens(logits: Tensor, uniform: Tensor, temperature: float) -> Tensor:
    """(M,) ids from softmax(logits / temperature) of (M, V) logits by inverting its distribution function.

    The drawn token is the first whose cumulated probability exceeds the (M,) numbers, so one of probability 0 never
    is. Scaling by the last sum, which rounding moves off 1, keeps the search inside the vocabulary.
    """
    cumulated = torch.softmax(logits.float() / temperature, dim=-1).cumsum(dim=-1)
    targets = uniform[:, None] * cumulated[:, -1:]
    return torch.searchsorted(cumulated, targets, right=True).squeeze(1)
