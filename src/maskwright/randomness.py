"""Counter-based randomness: a hash of (seed, epoch, sample, position) instead of a generator with state.

The same integers come out on every device, in any batch and after any restart, so nothing needs to be saved.
The mixing steps are the finaliser of SplitMix64 (Steele, Lea, Flood 2014), in wrapping 64-bit arithmetic.
"""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor

_GOLDEN_GAMMA = 0x9E3779B97F4A7C15
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9
_MULTIPLIER_2 = 0x94D049BB133111EB
_UINT64 = (1 << 64) - 1
UINT32_RANGE = 1 << 32


class Stream(IntEnum):
    """Independent uses of randomness; each gets its own numbers from the same seed."""

    SELECTION = 1
    ROUNDING = 2
    CORRUPTION = 3
    REPLACEMENT = 4
    ORDER = 5
    ROWS = 6
    DROPOUT = 7
    PACKING = 8
    PARTS = 9
    AUGMENTATION = 10
    PAIR_CUT = 12
    PAIR_PARTNER = 13
    PAIR_LABEL = 14
    SAMPLING = 11
    OBJECTIVE = 15
    CROPS = 16
    SHARE = 17
    MIXTURE = 18


def compute_key(seed: int, epoch: int, stream: Stream) -> int:
    """One 64-bit key for a (seed, epoch, stream); the scalar side of the hash."""
    key = 0
    for word in (seed, epoch, int(stream)):
        key = _mix_int((key + _GOLDEN_GAMMA + (word & _UINT64)) & _UINT64)
    return key


def hash_counters(key: int, *counters: Tensor) -> Tensor:
    """64 random bits (as int64) for every element of the broadcast integer counters."""
    state, *rest = (counter.long() for counter in counters)
    state = _mix(state + _as_int64((key + _GOLDEN_GAMMA) & _UINT64))
    for counter in rest:
        state = _mix(state + counter + _as_int64(_GOLDEN_GAMMA))
    return state


def random_uint32(key: int, *counters: Tensor) -> Tensor:
    """Uniform integers in [0, 2**32), as int64."""
    return _shift_right(hash_counters(key, *counters), 32)


def threshold(probability: float) -> int:
    """The bound below which a `random_uint32` falls with this probability."""
    return round(probability * UINT32_RANGE)


def random_below(limit: int, key: int, *counters: Tensor) -> Tensor:
    """Uniform integers in [0, limit), for limits up to 2**31."""
    return (random_uint32(key, *counters) * limit) >> 32


def permutation(num_items: int, key: int) -> Tensor:
    """An order of `range(num_items)` that is a function of the key alone."""
    return torch.argsort(hash_counters(key, torch.arange(num_items)), stable=True)


def seed_generators(seed: int, device: torch.device) -> None:
    """As `torch.manual_seed`, for the CPU and this device alone; that of all kinds of devices takes a millisecond."""
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)


def _mix(state: Tensor) -> Tensor:
    state = (state ^ _shift_right(state, 30)) * _as_int64(_MULTIPLIER_1)
    state = (state ^ _shift_right(state, 27)) * _as_int64(_MULTIPLIER_2)
    return state ^ _shift_right(state, 31)


def _mix_int(state: int) -> int:
    state = ((state ^ (state >> 30)) * _MULTIPLIER_1) & _UINT64
    state = ((state ^ (state >> 27)) * _MULTIPLIER_2) & _UINT64
    return state ^ (state >> 31)


def _shift_right(state: Tensor, bits: int) -> Tensor:
    """Logical shift; torch's `>>` on int64 keeps the sign."""
    return (state >> bits) & ((1 << (64 - bits)) - 1)


def _as_int64(word: int) -> int:
    return word - (1 << 64) if word >= 1 << 63 else word
