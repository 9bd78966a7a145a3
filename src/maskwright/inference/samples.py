"""What a kind of prediction makes of a text: token ids, as one document of a row or as several windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

SampleT = TypeVar("SampleT", bound="Sample", covariant=True)


@dataclass(frozen=True)
class Sample:
    """Token ids that the encoder reads as one document, special tokens included."""

    ids: Sequence[int]
    token_type_ids: Sequence[int] | None = None
    """Of pairs of texts; None: all tokens are of the first segment."""


@dataclass(frozen=True)
class EncodedBatch(Generic[SampleT]):
    """Hidden states of some samples, one sample after another. N samples, T tokens, D width."""

    samples: Sequence[SampleT]
    hidden: Tensor
    """(T, D)"""
    lengths: Tensor
    """(N,) tokens of each sample."""

    @property
    def starts(self) -> Tensor:
        """(N,) where each sample begins in `hidden`."""
        return self.lengths.cumsum(0) - self.lengths

    def split(self) -> list[Tensor]:
        """The hidden states of each sample."""
        return list(torch.split(self.hidden, self.lengths.tolist()))
