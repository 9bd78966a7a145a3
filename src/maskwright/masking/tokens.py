"""BERT's corruption of a batch: choose tokens, replace most of them, remember what they were.

B rows, S row length, V vocabulary. Everything is a function of (seed, epoch, sample, position): no generator, no host
synchronisation, the same integers on every device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from maskwright.batch import IGNORED_LABEL, PackedBatch
from maskwright.errors import InputError
from maskwright.randomness import Stream, compute_key, random_below, random_uint32, threshold

Selection = Literal["exact", "bernoulli"]


@dataclass(frozen=True)
class CorruptedBatch:
    """What the model sees and what it must answer."""

    batch: PackedBatch
    """The batch with its chosen tokens replaced."""
    labels: Tensor
    """(B, S) original ids where a token was chosen, -100 elsewhere."""
    num_slots: int
    """More slots than tokens were chosen, whatever the batch: the static size of the prediction head's input."""

    @property
    def selected(self) -> Tensor:
        return self.labels != IGNORED_LABEL


class TokenMasker:
    """Chooses single tokens and corrupts them: mostly [MASK], sometimes a random token, sometimes nothing."""

    def __init__(
        self,
        vocab_size: int,
        mask_token_id: int,
        special_token_ids: Sequence[int],
        random_token_ratio: float = 0.1,
        unchanged_ratio: float = 0.1,
        selection: Selection = "exact",
    ) -> None:
        self.mask_token_id = mask_token_id
        self.random_token_ratio = random_token_ratio
        self.unchanged_ratio = unchanged_ratio
        self.selection = selection
        self._is_special = torch.zeros(vocab_size, dtype=torch.bool)
        self._is_special[[mask_token_id, *special_token_ids]] = True
        self._drawable_ids = torch.nonzero(~self._is_special).flatten()
        if not len(self._drawable_ids):
            raise InputError(f"all {vocab_size} ids of the vocabulary are special tokens; nothing can be masked")

    def corrupt(self, batch: PackedBatch, ratio: float, seed: int, epoch: int) -> CorruptedBatch:
        """Mask `ratio` of each sample's ordinary tokens."""
        if not 0.0 <= ratio <= 1.0:
            raise InputError(f"the mask ratio is {ratio}; it must lie in [0, 1]")
        self._move_tables(batch.input_ids.device)
        is_maskable = ~(self._is_special[batch.input_ids] | batch.is_padding)
        selected = self._select(batch, is_maskable, ratio, seed, epoch)
        labels = torch.where(selected, batch.input_ids, IGNORED_LABEL)

        counters = (batch.sample_ids, batch.positions)
        fate = random_uint32(compute_key(seed, epoch, Stream.CORRUPTION), *counters)
        drawn = random_below(len(self._drawable_ids), compute_key(seed, epoch, Stream.REPLACEMENT), *counters)
        replaced = torch.where(fate < threshold(self.random_token_ratio), self._drawable_ids[drawn], self.mask_token_id)
        stays = ~selected | (fate >= threshold(1.0 - self.unchanged_ratio))
        corrupted = torch.where(stays, batch.input_ids, replaced.to(batch.input_ids.dtype))
        return CorruptedBatch(batch.with_input_ids(corrupted), labels, compute_num_slots(labels.numel(), ratio))

    def _select(self, batch: PackedBatch, is_maskable: Tensor, ratio: float, seed: int, epoch: int) -> Tensor:
        draws = random_uint32(compute_key(seed, epoch, Stream.SELECTION), batch.sample_ids, batch.positions)
        if self.selection == "bernoulli":
            return is_maskable & (draws < threshold(ratio))
        rounding = random_uint32(compute_key(seed, epoch, Stream.ROUNDING), batch.sample_ids)
        return _select_exact_share(batch.document_ids, is_maskable, draws, rounding, ratio)

    def _move_tables(self, device: torch.device) -> None:
        if self._is_special.device != device:
            self._is_special = self._is_special.to(device)
            self._drawable_ids = self._drawable_ids.to(device)


def compute_num_slots(num_tokens: int, ratio: float) -> int:
    """Six standard deviations above the expected number of chosen tokens, which bounds both kinds of selection."""
    expected = num_tokens * ratio
    return min(num_tokens, math.ceil(expected + 6 * math.sqrt(expected)) + 8)


def _select_exact_share(
    document_ids: Tensor, is_maskable: Tensor, draws: Tensor, rounding: Tensor, ratio: float
) -> Tensor:
    """In each document the `ratio * n` maskable tokens with the smallest draws.

    The quota is rounded up or down at random so that its expectation is exact; `rounding` is the same for all tokens
    of a document.
    """
    num_rows, length = document_ids.shape
    document_ids = document_ids.long()

    def count_by_document(flags: Tensor) -> Tensor:
        counts = torch.zeros(num_rows, length + 1, dtype=torch.long, device=flags.device)
        return counts.scatter_add_(1, document_ids, flags.long())

    num_maskable = count_by_document(is_maskable).gather(1, document_ids)
    quota = (num_maskable * threshold(ratio) + rounding) >> 32

    sort_keys = (document_ids << 33) | (torch.where(is_maskable, 0, 1) << 32) | draws
    order = torch.argsort(sort_keys, dim=1, stable=True)
    document_sizes = count_by_document(torch.ones_like(is_maskable))
    document_starts = (document_sizes.cumsum(1) - document_sizes).gather(1, document_ids)
    place = torch.empty_like(order).scatter_(
        1, order, torch.arange(length, device=order.device).expand(num_rows, length).contiguous()
    )
    return is_maskable & (place - document_starts < quota)
