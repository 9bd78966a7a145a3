"""Which blocks of tokens may attend to which, for FlexAttention: those that share no document cost nothing.

B rows, S row length, N blocks of a row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from maskwright.batch import PADDING_DOCUMENT

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
"""What was quickest on an H200 for heads of 64 and short documents (docs/experiments.md)."""
_SHORT_HEAD = 64
_SIZES = (16, 32, 64, 128, 256)
Mask = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def supports_blocks(head_size: int, dropout: float) -> bool:
    """FlexAttention has no dropout, and kernels for these head sizes only."""
    return head_size in _SIZES and dropout == 0.0


def choose_kernel_options(query: Tensor) -> Any:
    """Sizes of FlexAttention's tiles for queries (B, H, S, K); None: its own choice.

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
    """Whether one token sees another; each kind is a function of its own, as a kernel is compiled for each."""
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
