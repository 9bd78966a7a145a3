"""Attention within documents; no other module needs to know that a row holds several.

Compiled layers get FlexAttention's block masks, where blocks that share no document cost nothing.
B rows, S row length, D width, H attention heads, K head size, N blocks of a row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from maskwright.batch import PADDING_DOCUMENT
from maskwright.models.documents import DocumentGroups, FlatAttention
from maskwright.models.layers import Linear, StackedLinear, drop

AttentionMask = Tensor | BlockMask | DocumentGroups | FlatAttention | None
"""An attention mask: a dense mask, scores to add, blocks for compiled layers, or the documents of one row.

None if all tokens see each other.
"""
BLOCK_SIZE = 128
_SHORT_OPTIONS: Any = {
    "fwd_BLOCK_M": 128,
    "fwd_BLOCK_N": 32,
    "fwd_num_warps": 4,
    "fwd_num_stages": 3,
    "bwd_BLOCK_M1": 32,
    "bwd_BLOCK_N1": 64,
    "bwd_BLOCK_M2": 64,
    "bwd_BLOCK_N2": 32,
    "bwd_num_warps": 4,
    "bwd_num_stages": 2,
}
"""The fastest tile sizes on an H200 for heads of 64 and short documents (docs/experiments.md)."""
_SHORT_HEAD = 64
_HEAD_SIZES = (16, 32, 64, 128, 256)
Mask = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


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
    """Rotary position embedding (Su et al. 2021): rotates pairs of query and key features by angles that depend on the
    position.
    """

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
        self.qkv: Linear = StackedLinear(width, width, num_stacked=3, bias=bias)
        self.output = Linear(width, width, bias=bias)

    def forward(self, hidden: Tensor, attention_mask: AttentionMask, rotation: Rotation | None = None) -> Tensor:
        rows, length, width = hidden.shape
        query, key, value = self.project(hidden, rotation)
        attended = self._attend(query, key, value, attention_mask)
        return self.output(attended.transpose(1, 2).reshape(rows, length, width))

    def project(self, hidden: Tensor, rotation: Rotation | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value (B, H, S, K) of hidden states (B, S, D)."""
        query, key, value = self.split_heads(self.qkv(hidden))
        return (query, key, value) if rotation is None else (rotation.apply(query), rotation.apply(key), value)

    def split_heads(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value (B, H, S, K) of their common product (B, S, 3 D)."""
        query, key, value = qkv.unflatten(-1, (3, self.num_attn_heads, -1)).unbind(2)
        return query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: AttentionMask) -> Tensor:
        """(B, H, S, K) of the same"""
        if isinstance(attention_mask, BlockMask):
            options = choose_kernel_options(query)
            attended = flex_attention(query, key, value, block_mask=attention_mask, kernel_options=options)
            assert isinstance(attended, Tensor)
            return attended
        if isinstance(attention_mask, FlatAttention):
            return attention_mask.attend(query, key, value)
        if isinstance(attention_mask, DocumentGroups):
            return attention_mask.attend(query, key, value, self._attend_densely)
        if attention_mask is not None and attention_mask.is_floating_point():
            attention_mask = attention_mask.to(query.dtype)  # scores to add, computed beside an autocast product
        return self._attend_densely(query, key, value, attention_mask)

    def _attend_densely(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None) -> Tensor:
        rate = self.dropout if self.training else 0.0
        if rate and query.device.type == "cpu":
            return _attend_dropping(query, key, value, attention_mask, rate)
        if query.device.type == "cpu" and query.dtype == torch.bfloat16 and query.requires_grad:
            return _attend_in_fp32(query, key, value, attention_mask)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, dropout_p=rate)


def _attend_dropping(query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, rate: float) -> Tensor:
    """Attention with dropout, as torch computes it, but with cheaper random numbers."""
    scores = (query * query.shape[-1] ** -0.5) @ key.mT
    if attention_mask is not None:
        if attention_mask.is_floating_point():
            scores = scores + attention_mask
        else:
            with torch.no_grad():  # the softmax gives what is masked no gradient, which need not be set to 0 again
                scores.masked_fill_(~attention_mask, -torch.inf)
    return drop(scores.softmax(dim=-1), rate) @ value


def _attend_in_fp32(query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None) -> Tensor:
    """For training in bf16, in which the gradient of torch's kernel for CPUs took eight times as long (2.13)."""
    is_added = attention_mask is not None and attention_mask.is_floating_point()
    scores = attention_mask.float() if attention_mask is not None and is_added else attention_mask
    with torch.autocast("cpu", enabled=False):
        attended = F.scaled_dot_product_attention(query.float(), key.float(), value.float(), attn_mask=scores)
    return attended.to(query.dtype)


def supports_blocks(hidden: Tensor, head_size: int, dropout: float) -> bool:
    """Whether FlexAttention can be used: it has no dropout, and kernels for these head sizes only.

    That of rows shorter than a block took torch 2.11 more than four minutes to compile for heads of 128 in fp32, of
    which all products are unrolled.
    """
    is_exact = hidden.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
    is_slow_to_compile = is_exact and hidden.shape[1] < BLOCK_SIZE and head_size > _SHORT_HEAD
    return head_size in _HEAD_SIZES and dropout == 0.0 and not is_slow_to_compile


def choose_kernel_options(query: Tensor) -> Any:
    """Tile sizes of FlexAttention for queries (B, H, S, K); None for its defaults.

    Rows must be whole tiles: with 128 queries to a tile, torch 2.11's forward kernel gave NaN or garbage for rows of
    16, 32 and 64, and wrong numbers for rows of 320.
    """
    is_short = query.dtype.itemsize == 2 and query.shape[-1] <= _SHORT_HEAD
    has_whole_tiles = query.shape[-2] % BLOCK_SIZE == 0
    return _SHORT_OPTIONS if is_short and has_whole_tiles else None


def build_block_mask(
    document_ids: Tensor, is_causal: Tensor | None = None, half_window: int | None = None
) -> BlockMask:
    """Tokens see those of their own document, at most `half_window` places away where it is given.

    `is_causal` (B, S) is true for tokens that may see only what comes before them, and themselves. Blocks are judged by
    their smallest and largest document, which is exact where the documents of a row follow each other. Nothing waits
    for the device.
    """
    length = document_ids.shape[1]
    may_see, sees_all = _compare_documents(document_ids)
    if half_window is not None:
        least, most = _measure_distances(may_see.shape[-1], document_ids.device)
        may_see, sees_all = may_see & (least <= half_window), sees_all & (most <= half_window)
    if is_causal is not None:
        sees_all = sees_all & ~_pad(is_causal, value=True).any(-1)[..., None]
    return BlockMask.from_kv_blocks(
        *_list_blocks(may_see & ~sees_all),
        *_list_blocks(sees_all),
        BLOCK_SIZE=BLOCK_SIZE,
        mask_mod=_build_mask(document_ids, is_causal, half_window),
        seq_lengths=(length, length),
    )


def _compare_documents(document_ids: Tensor) -> tuple[Tensor, Tensor]:
    """(B, N, N) whether any two tokens of two blocks share a document, and whether all do."""
    length = document_ids.shape[1]
    # Padding closes a row, so its number must be the largest for blocks to hold neighbouring documents.
    ordered = torch.where(document_ids == PADDING_DOCUMENT, length + 1, document_ids.long())
    blocks = _pad(ordered, value=length + 2)
    low, high = blocks.amin(-1), blocks.amax(-1)
    overlaps = (low[:, :, None] <= high[:, None, :]) & (high[:, :, None] >= low[:, None, :])
    is_single = low == high
    is_same = is_single[:, :, None] & is_single[:, None, :] & (low[:, :, None] == low[:, None, :])
    return overlaps, is_same


def _pad(values: Tensor, value: float) -> Tensor:
    """(B, N, block): rows in whole blocks."""
    missing = -values.shape[1] % BLOCK_SIZE
    return F.pad(values, (0, missing), value=value).unflatten(1, (-1, BLOCK_SIZE))


def _measure_distances(num_blocks: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(N, N) how near and how far apart tokens of two blocks can be."""
    numbers = torch.arange(num_blocks, device=device)
    apart = (numbers[:, None] - numbers).abs() * BLOCK_SIZE
    return (apart - BLOCK_SIZE + 1).clamp(min=0), apart + BLOCK_SIZE - 1


def _list_blocks(is_chosen: Tensor) -> tuple[Tensor, Tensor]:
    """(B, 1, N) how many blocks are chosen for each, and (B, 1, N, N) their numbers, the chosen first."""
    order = torch.argsort(is_chosen.to(torch.int8), dim=-1, descending=True, stable=True)
    return is_chosen.sum(-1, dtype=torch.int32)[:, None], order.to(torch.int32)[:, None]


def _build_mask(document_ids: Tensor, is_causal: Tensor | None, half_window: int | None) -> Mask:
    """The function that tells whether one token sees another; one function per kind of mask, as each is compiled."""
    if is_causal is not None and half_window is not None:
        return lambda row, head, query, key: (
            _share(document_ids, row, query, key)
            & _is_near(query, key, half_window)
            & _may_look_ahead(is_causal, row, query, key)
        )
    if is_causal is not None:
        return lambda row, head, query, key: (
            _share(document_ids, row, query, key) & _may_look_ahead(is_causal, row, query, key)
        )
    if half_window is not None:
        return lambda row, head, query, key: _share(document_ids, row, query, key) & _is_near(query, key, half_window)
    return lambda row, head, query, key: _share(document_ids, row, query, key)


def _share(document_ids: Tensor, row: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return document_ids[row, query] == document_ids[row, key]


def _is_near(query: Tensor, key: Tensor, half_window: int) -> Tensor:
    """Places in a row are as far apart as positions in a document."""
    return (query - key).abs() <= half_window


def _may_look_ahead(is_causal: Tensor, row: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return ~is_causal[row, query] | (key <= query)
