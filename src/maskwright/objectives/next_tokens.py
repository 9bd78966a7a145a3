"""Labels for predicting what comes next. B rows, S row length."""

from __future__ import annotations

import torch
from torch import Tensor

from maskwright.batch import IGNORED_LABEL, PackedBatch
from maskwright.masking.tokens import CorruptedBatch


def label_next_tokens(batch: PackedBatch) -> Tensor:
    """(B, S) the id after each token within its document, -100 after its last and on padding."""
    return shift_left(batch.input_ids, batch)


def ask_next_tokens(batch: PackedBatch) -> CorruptedBatch:
    """The batch as it is, seen from left to right; every token's label is the one after it."""
    everywhere = torch.ones_like(batch.input_ids, dtype=torch.bool)
    return CorruptedBatch(batch, label_next_tokens(batch), batch.input_ids.numel(), everywhere)


def shift_left(labels: Tensor, batch: PackedBatch) -> Tensor:
    """Labels one place earlier, where that is still in the same document; -100 elsewhere."""
    shares_document = torch.roll(batch.document_ids, -1, dims=1) == batch.document_ids
    shares_document[:, -1] = False
    return torch.roll(labels, -1, dims=1).masked_fill(~shares_document | batch.is_padding, IGNORED_LABEL)
