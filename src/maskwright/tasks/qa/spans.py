"""Scores of tokens to scores of spans. B rows, S row length, N documents of a row, L the longest span, K spans."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from maskwright.batch import PackedBatch

OUTSIDE = -1e30
"""The score of what cannot be an answer: so low that it has no share, and finite, so that nothing becomes NaN."""
_SECOND_SEGMENT = 1


@dataclass(frozen=True)
class Spans:
    """The best spans in order, all (..., K); those with a score of `OUTSIDE` or less are none."""

    scores: Tensor
    """The start's score and the end's together."""
    starts: Tensor
    ends: Tensor
    """The last token, included."""


def arrange_documents(values: Tensor, batch: PackedBatch, num_documents: int, fill: float) -> Tensor:
    """(B, N, S, ...) of (B, S, ...): each document begins at place 0, and `fill` stands behind its end."""
    rows, length, size = values.shape
    slots = batch.document_ids * length + batch.positions  # padding goes to document 0, which is dropped
    empty = values.new_full((rows, (num_documents + 1) * length, size), fill)
    filled = empty.scatter(1, slots[..., None].expand_as(values), values)
    return filled.view(rows, num_documents + 1, length, size)[:, 1:]


def find_context_tokens(batch: PackedBatch) -> Tensor:
    """(B, S) true where an answer may stand: in the second segment, its separators aside."""
    if batch.token_type_ids is None:
        return (batch.positions > 0) & ~batch.is_padding
    following = F.pad(batch.document_ids[:, 1:], (0, 1))
    is_last = (batch.document_ids != following) & ~batch.is_padding
    separator = torch.where(is_last, batch.input_ids, -1).max()  # every document ends with it
    return (batch.token_type_ids == _SECOND_SEGMENT) & (batch.input_ids != separator) & ~batch.is_padding


def find_best_spans(starts: Tensor, ends: Tensor, is_context: Tensor, max_length: int, num_spans: int) -> Spans:
    """Of scores (..., S) of starts and ends: spans of at most `max_length` tokens of the context."""
    length = starts.shape[-1]
    longest = min(max_length, length)
    starts, ends = (scores.float().masked_fill(~is_context, OUTSIDE) for scores in (starts, ends))
    reached = F.pad(ends, (0, longest - 1), value=OUTSIDE).unfold(-1, longest, 1)  # (..., S, L)
    scores = (starts[..., None] + reached).flatten(-2)
    missing = max(0, num_spans - scores.shape[-1])
    best, index = F.pad(scores, (0, missing), value=2 * OUTSIDE).topk(num_spans)
    index = index.clamp(max=length * longest - 1)
    first = index // longest
    return Spans(best, first, first + index % longest)
