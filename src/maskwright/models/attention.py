"""Attention within documents: the only place that knows rows hold several of them.

B rows, S row length, D width, H attention heads, K head size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from maskwright.models.block_masks import choose_kernel_options
from maskwright.models.dropout import drop
from maskwright.models.layers import Linear, StackedLinear

AttentionMask = Tensor | BlockMask | None
"""What tokens may see: a dense mask, scores to add, or blocks for compiled layers; None where all is seen."""


def build_attention_mask(document_ids: Tensor | None, is_causal: Tensor | None = None) -> Tensor | None:
    """(B, 1, S, S), true where two tokens share a document; None when every row is one whole document.

    `is_causal` (B, S) is true for tokens that may see only what comes before them, and themselves. Padding tokens
    share document 0 and attend to each other, so no row of the mask is empty.
    """
    shares_document = None
    if document_ids is not None:
        shares_document = (document_ids[:, :, None] == document_ids[:, None, :])[:, None]
    if is_causal is None:
        return shares_document
    places = torch.arange(is_causal.shape[1], device=is_causal.device)
    may_see = (~is_causal[:, :, None] | (places[None, :] <= places[:, None]))[:, None]
    return may_see if shares_document is None else shares_document & may_see


def limit_to_window(attention_mask: Tensor | None, positions: Tensor, half_window: int) -> Tensor:
    """Narrow a mask to tokens at most `half_window` places apart; positions are (S,) or (B, S)."""
    is_near = (positions[..., :, None] - positions[..., None, :]).abs() <= half_window
    is_near = is_near[:, None] if is_near.ndim == 3 else is_near
    return is_near if attention_mask is None else attention_mask & is_near


class Rotation:
    """Rotary position embedding (Su et al. 2021): turns pairs of query and key features by angles set by position."""

    def __init__(self, positions: Tensor, head_size: int, theta: float | Tensor) -> None:
        frequencies = theta ** (
            -torch.arange(0, head_size, 2, device=positions.device, dtype=torch.float32) / head_size
        )
        angles = positions[..., None].float() * frequencies
        angles = angles[:, None] if angles.ndim == 3 else angles
        self.cosines = torch.cat([angles.cos(), angles.cos()], dim=-1)
        self.sines = torch.cat([-angles.sin(), angles.sin()], dim=-1)

    def apply(self, features: Tensor) -> Tensor:
        """Rotate (B, H, S, K)."""
        first, second = features.chunk(2, dim=-1)
        swapped = torch.cat([second, first], dim=-1)
        return (features * self.cosines + swapped * self.sines).to(features.dtype)


class SelfAttention(nn.Module):
    """Multi-head self-attention with one product for query, key and value."""

    def __init__(self, width: int, num_attn_heads: int, dropout: float, bias: bool = True) -> None:
        super().__init__()
        self.num_attn_heads = num_attn_heads
        self.dropout = dropout
        self.qkv = StackedLinear(width, width, num_stacked=3, bias=bias)
        self.output = Linear(width, width, bias=bias)

    def forward(self, hidden: Tensor, attention_mask: AttentionMask, rotation: Rotation | None = None) -> Tensor:
        rows, length, width = hidden.shape
        qkv = self.qkv(hidden).view(rows, length, 3, self.num_attn_heads, width // self.num_attn_heads)
        query, key, value = (part.transpose(1, 2) for part in qkv.unbind(2))
        if rotation is not None:
            query, key = rotation.apply(query), rotation.apply(key)
        attended = self._attend(query, key, value, attention_mask)
        return self.output(attended.transpose(1, 2).reshape(rows, length, width))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: AttentionMask) -> Tensor:
        """(B, H, S, K) of the same"""
        if isinstance(attention_mask, BlockMask):
            options = choose_kernel_options(query)
            attended = flex_attention(query, key, value, block_mask=attention_mask, kernel_options=options)
            assert isinstance(attended, Tensor)
            return attended
        if attention_mask is not None and attention_mask.is_floating_point():
            attention_mask = attention_mask.to(query.dtype)  # scores to add, computed beside an autocast product
        rate = self.dropout if self.training else 0.0
        if rate and query.device.type == "cpu":
            return _attend_dropping(query, key, value, attention_mask, rate)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, dropout_p=rate)


def _attend_dropping(query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, rate: float) -> Tensor:
    """The steps that torch takes where weights are dropped, with cheaper draws."""
    scores = (query * query.shape[-1] ** -0.5) @ key.mT
    if attention_mask is not None:
        is_added = attention_mask.is_floating_point()
        scores = scores + attention_mask if is_added else scores.masked_fill(~attention_mask, -torch.inf)
    return drop(scores.softmax(dim=-1), rate) @ value
