"""Dropout, with cheaper draws on CPUs and in compiled layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_RANGE = 1 << 16
_LOWEST = -(1 << 15)
_DRAWS_PER_WORD = 4
_MOST_HASHED = 1 << 31
# Shifts and multipliers of a search for unbiased 32-bit hashes, as signed words (github.com/skeeto/hash-prospector).
_SCRAMBLING = ((16, 0x7FEB352D), (15, 0x846CA68B - (1 << 32)))


class Dropout(nn.Dropout):
    """As torch's, by `drop`."""

    def forward(self, values: Tensor) -> Tensor:
        return drop(values, self.p) if self.training else values


def drop(values: Tensor, rate: float) -> Tensor:
    """Set a share of the values to zero and scale the others up; our own draws round the rate to 1 / 65,536."""
    num_dropped = round(rate * _RANGE)
    if not 0 < num_dropped < _RANGE:
        return F.dropout(values, rate)
    if values.device.type == "cpu":
        return _keep(values, _draw_by_words(values), num_dropped)
    if values.is_cuda and torch.compiler.is_compiling() and values.numel() < _MOST_HASHED:
        return _keep(values, _draw_by_hash(values), num_dropped)
    return F.dropout(values, rate)


def _keep(values: Tensor, draws: Tensor, num_dropped: int) -> Tensor:
    is_kept = draws >= _LOWEST + num_dropped
    return values * is_kept.to(values.dtype).mul_(_RANGE / (_RANGE - num_dropped))


def _draw_by_words(values: Tensor) -> Tensor:
    """16 bits of a random word for each: three times as fast as torch's doubles, drawn one after another."""
    num_words = -(-values.numel() // _DRAWS_PER_WORD)
    words = torch.randint(-(1 << 63), (1 << 63) - 1, (num_words,), dtype=torch.int64)
    return words.view(torch.int16)[: values.numel()].view(values.shape)


def _draw_by_hash(values: Tensor) -> Tensor:
    """16 bits of each place's number, scrambled: a few operations inside the kernels that use them, in both passes.

    Compiled, `F.dropout` runs ten rounds of Philox for every value. Random words make the draws of every call its own.
    """
    seeds = torch.randint(1 << 31, (len(_SCRAMBLING),), dtype=torch.int64, device=values.device).to(torch.int32)
    bits = torch.arange(values.numel(), dtype=torch.int32, device=values.device)
    for seed, (num_bits, multiplier) in zip(seeds.unbind(), _SCRAMBLING, strict=True):
        bits = bits ^ seed
        bits = (bits ^ _shift(bits, num_bits)) * multiplier
    return (bits >> 16).view(values.shape)


def _shift(bits: Tensor, num_bits: int) -> Tensor:
    """To the right, with zeros from the left."""
    return (bits >> num_bits) & ((1 << (32 - num_bits)) - 1)
