"""Attention among the short documents of a flat row, for inference on a GPU.

FlashAttention takes each document alone, in tiles of 128 queries: of a sentence's tile most is empty. Here a tile holds
queries of several documents, and sees the keys from the first of these to the last.
T tokens of the row, H attention heads, K head size, N documents.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

NUM_QUERIES = 64
NUM_KEYS = 32
_NUM_WARPS = 4
_NUM_STAGES = 2
_LEAST_HEAD = 16
"""What a tensor core multiplies at a time."""
_LOG2_E = math.log2(math.e)


@triton.jit
def _attend_tile(
    query,
    key,
    value,
    numbers,
    starts,
    output,
    num_tokens,
    num_heads,
    query_token,
    query_head,
    key_token,
    key_head,
    value_token,
    value_head,
    scale,
    head_size: tl.constexpr,
    head_block: tl.constexpr,
    num_queries: tl.constexpr,
    num_keys: tl.constexpr,
):
    head = tl.program_id(0) % num_heads
    first = (tl.program_id(0) // num_heads) * num_queries
    rows = first + tl.arange(0, num_queries)
    columns = tl.arange(0, head_block)
    is_row = rows < num_tokens
    is_column = columns[None, :] < head_size
    own = tl.load(numbers + rows, mask=is_row, other=0)
    last = tl.minimum(first + num_queries, num_tokens) - 1
    begin = tl.load(starts + tl.load(numbers + first) - 1)
    end = tl.load(starts + tl.load(numbers + last))
    places = rows.to(tl.int64)[:, None] * query_token + head * query_head + columns[None, :]
    queries = tl.load(query + places, mask=is_row[:, None] & is_column, other=0.0)
    highest = tl.full([num_queries], -1e30, dtype=tl.float32)
    total = tl.zeros([num_queries], dtype=tl.float32)
    summed = tl.zeros([num_queries, head_block], dtype=tl.float32)
    for block in range(begin, end, num_keys):
        seen = block + tl.arange(0, num_keys)
        is_seen = seen < end
        other = tl.load(numbers + seen, mask=is_seen, other=-1)
        wide = seen.to(tl.int64)[:, None]
        keys = tl.load(key + wide * key_token + head * key_head + columns[None, :],
                       mask=is_seen[:, None] & is_column, other=0.0)  # fmt: skip
        values = tl.load(value + wide * value_token + head * value_head + columns[None, :],
                         mask=is_seen[:, None] & is_column, other=0.0)  # fmt: skip
        may_see = own[:, None] == other[None, :]
        scores = tl.where(may_see, tl.dot(queries, tl.trans(keys)) * scale, -1e30)
        higher = tl.maximum(highest, tl.max(scores, 1))
        shrunk = tl.exp2(highest - higher)
        shares = tl.where(may_see, tl.exp2(scores - higher[:, None]), 0.0)
        total = total * shrunk + tl.sum(shares, 1)
        summed = summed * shrunk[:, None] + tl.dot(shares.to(values.dtype), values)
        highest = higher
    attended = summed / total[:, None]
    places = (rows.to(tl.int64)[:, None] * num_heads + head) * head_size + columns[None, :]
    tl.store(output + places, attended.to(output.dtype.element_ty), mask=is_row[:, None] & is_column)


def attend_short_documents(query: Tensor, key: Tensor, value: Tensor, numbers: Tensor, starts: Tensor) -> Tensor:
    """(T, H, K) of the same, in 16 bits.

    `numbers` (T,) are those of each token's document, from 1; `starts` (N + 1,) where each begins, and the last ends.
    """
    num_tokens, num_heads, head_size = query.shape
    query, key, value = (one if one.stride(2) == 1 else one.contiguous() for one in (query, key, value))
    output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    _attend_tile[(num_heads * triton.cdiv(num_tokens, NUM_QUERIES),)](
        query,
        key,
        value,
        numbers,
        starts,
        output,
        num_tokens,
        num_heads,
        *(size for one in (query, key, value) for size in one.stride()[:2]),
        head_size**-0.5 * _LOG2_E,
        head_size=head_size,
        head_block=max(_LEAST_HEAD, triton.next_power_of_2(head_size)),
        num_queries=NUM_QUERIES,
        num_keys=NUM_KEYS,
        num_warps=_NUM_WARPS,
        num_stages=_NUM_STAGES,
    )
    return output


def attend_plainly(query: Tensor, key: Tensor, value: Tensor, numbers: Tensor) -> Tensor:
    """The same for any dtype and device, with a mask of all pairs of tokens."""
    query, key, value = (one.transpose(0, 1)[None] for one in (query, key, value))
    shares_document = (numbers[:, None] == numbers)[None, None]
    return F.scaled_dot_product_attention(query, key, value, attn_mask=shares_document)[0].transpose(0, 1)
