"""Random numbers of several streams at once; on a GPU it is the number of operations that costs, not their size.

B rows, S row length, N streams. The numbers are those of `random_uint32(key, sample_ids, positions)`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from maskwright.randomness import UINT32_RANGE, hash_counters


def hash_samples(sample_ids: Tensor, keys: Sequence[int]) -> Tensor:
    """(N, B, S) 64 random bits for each key and sample."""
    return hash_counters(0, torch.stack([sample_ids + _as_int64(key) for key in keys]))


def hash_positions(sample_hashes: Tensor, positions: Tensor) -> Tensor:
    """(N, B, S) 64 random bits for each key, sample and position."""
    return hash_counters(0, sample_hashes + positions)


def high_bits(hashes: Tensor) -> Tensor:
    """Uniform integers in [0, 2**32)."""
    return (hashes >> 32) & (UINT32_RANGE - 1)


def low_bits(hashes: Tensor) -> Tensor:
    """Other such integers, independent of the high ones."""
    return hashes & (UINT32_RANGE - 1)


def _as_int64(key: int) -> int:
    return key - (1 << 64) if key >= 1 << 63 else key
