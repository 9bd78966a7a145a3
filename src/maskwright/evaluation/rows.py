"""Token sequences into batches without padding: sequences of one length, one to a row.

A text's masked copies are all as long as the text, so equal lengths are many; and rows as short as a sentence cost less
attention than longer ones that hold several.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

_BATCH_TOKENS = {"cpu": 8_192, "cuda": 65_536}
_MAX_ANSWERS = 2_048
"""Each takes a row of logits as long as the vocabulary."""

Ids = NDArray[np.int64]


def group_by_length(sequences: Sequence[Ids]) -> Iterator[Ids]:
    """The numbers of the sequences of each length, shortest first."""
    lengths = np.asarray([len(sequence) for sequence in sequences], dtype=np.int64)
    for length in np.unique(lengths):
        yield np.nonzero(lengths == length)[0]


def split_batches(num_sequences: int, length: int, num_answers: int, device: torch.device) -> Iterator[slice]:
    """Sequences of one length and so many answers each, in batches that suit a device and whose logits it can hold."""
    tokens = _BATCH_TOKENS.get(device.type, _BATCH_TOKENS["cpu"])
    per_batch = max(1, min(tokens // length, _MAX_ANSWERS // num_answers))
    for start in range(0, num_sequences, per_batch):
        yield slice(start, min(start + per_batch, num_sequences))
