"""Masks of masked diffusion: each sample has its own share of masked tokens, drawn evenly from the unit interval.

B rows, S row length. The loss of a masked token is divided by its sample's share, which makes the expected sum a bound
on the negative log-likelihood: the continuous-time bound for a linear schedule (Sahoo et al. 2024, MDLM; Nie et al.
2025, LLaDA).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from maskwright.batch import IGNORED_LABEL, PackedBatch
from maskwright.masking.tokens import CorruptedBatch, Masker, hash_positions, hash_samples, high_bits
from maskwright.randomness import UINT32_RANGE, Stream, compute_key, threshold

DEFAULT_MIN_SHARE = 1e-3
_SAMPLE_STRIDE = 0x9E3779B97F4A7C15
_EPOCH_STRIDE = 0x6A09E667F3BCC909
"""The golden ratio and the root of 2 less 1, as fractions of 2**64: multiples of either lie evenly in [0, 1)."""
_UINT31_RANGE = 1 << 31
_UINT64_RANGE = 1 << 64


@dataclass(frozen=True)
class DiffusionBatch(CorruptedBatch):
    """A masked batch whose losses have a weight each, and are divided by the tokens that could have been masked."""

    weights: Tensor = field(kw_only=True)
    """(B, S) one over the share of the sample at masked tokens, 0 elsewhere."""
    num_maskable: Tensor = field(kw_only=True)
    """() int64: ordinary tokens, masked or not."""

    @property
    def counts(self) -> Tensor:
        return self.num_maskable[None]


def draw_shares(sample_ids: Tensor, seed: int, epoch: int, min_share: float) -> Tensor:
    """The share of each token's sample, in units of 2**-32: even in [min_share, 1), as (B, S) int64.

    It is a function of (seed, epoch, sample) alone. A Weyl sequence instead of a hash: any run of successive samples,
    such as a held-out set, and the epochs of any one sample have shares that lie evenly, so their mean loss varies less
    than that of independent draws; each share by itself is as evenly distributed as the seed's hash.
    """
    offset = compute_key(seed, 0, Stream.SHARE) + epoch * _EPOCH_STRIDE
    places = sample_ids.long() * _as_int64(_SAMPLE_STRIDE) + _as_int64(offset % _UINT64_RANGE)
    lowest = threshold(min_share)
    return lowest + (((places >> 33) & (_UINT31_RANGE - 1)) * (UINT32_RANGE - lowest) >> 31)


def mask_by_shares(masker: Masker, batch: PackedBatch, seed: int, epoch: int, min_share: float) -> DiffusionBatch:
    """Mask every ordinary token independently, with the probability that is its sample's share.

    Masked tokens always become the mask token. There is a slot for every token, as a batch may be masked throughout.
    """
    is_maskable = masker.find_maskable(batch)
    shares = draw_shares(batch.sample_ids, seed, epoch, min_share)
    (hashes,) = hash_positions(
        hash_samples(batch.sample_ids, [compute_key(seed, epoch, Stream.SELECTION)]), batch.positions
    )
    selected = is_maskable & (high_bits(hashes) < shares)
    return DiffusionBatch(
        batch.with_input_ids(batch.input_ids.masked_fill(selected, masker.mask_token_id)),
        batch.input_ids.masked_fill(~selected, IGNORED_LABEL),
        num_slots=batch.input_ids.numel(),
        weights=torch.where(selected, UINT32_RANGE / shares.float(), 0.0),
        num_maskable=is_maskable.sum(),
    )


def _as_int64(word: int) -> int:
    return word - _UINT64_RANGE if word >= _UINT64_RANGE // 2 else word
