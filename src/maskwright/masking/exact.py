"""Choose a fixed share of each document's tokens. B rows, S row length."""

from __future__ import annotations

import torch
from torch import Tensor

from maskwright.masking.units import WordLayout
from maskwright.randomness import UINT32_RANGE, threshold


def select_exact_share(
    document_ids: Tensor,
    is_maskable: Tensor,
    draws: Tensor,
    rounding: Tensor,
    ratio: float,
    word: WordLayout | None = None,
) -> Tensor:
    """In each document the tokens with the smallest draws, until they are `ratio * n` of its n maskable ones.

    The last token is taken or left at random so that the expected number is exact; `rounding` is the same for all
    tokens of a document. With `word`, words are taken as wholes: one of s tokens of which only r fit is taken with
    probability r / s, so that the expectation stays exact and the number is off by less than s. Draws must then be the
    same for all tokens of a word.
    """
    num_rows, length = document_ids.shape
    document_ids = document_ids.long()

    def count_by_document(flags: Tensor) -> Tensor:
        counts = torch.zeros(num_rows, length + 1, dtype=torch.long, device=flags.device)
        return counts.scatter_add_(1, document_ids, flags.long())

    quota = count_by_document(is_maskable).gather(1, document_ids) * threshold(ratio)

    sort_keys = (document_ids << 33) | (torch.where(is_maskable, 0, 1) << 32) | draws
    order = torch.argsort(sort_keys, dim=1, stable=True)
    document_sizes = count_by_document(torch.ones_like(is_maskable))
    document_starts = (document_sizes.cumsum(1) - document_sizes).gather(1, document_ids)
    place = torch.empty_like(order).scatter_(
        1, order, torch.arange(length, device=order.device).expand(num_rows, length).contiguous()
    )
    num_before = place - document_starts
    if word is None:
        return is_maskable & (num_before < (quota + rounding) >> 32)
    needed = ((num_before - word.offsets) << 32) + word.sizes * (UINT32_RANGE - rounding)
    return is_maskable & (needed <= quota)
