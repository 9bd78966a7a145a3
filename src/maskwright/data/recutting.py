"""Other cuts through long documents in every epoch, so that a token is not always read in the same surroundings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from maskwright.data.store import SampleIndex, TokenStore
from maskwright.randomness import Stream, compute_key, random_below

FIRST_EPOCH = 0


@dataclass(frozen=True)
class Recut:
    """Moves the samples of a document by the same distance, at most half a sample to either side.

    Samples keep their lengths, so rows stay packed as they were, and they stay inside their document: at its ends some
    tokens come twice in an epoch and some do not come at all. In the first epoch nothing moves.
    """

    seed: int
    epoch: int

    def move(self, store: TokenStore, samples: SampleIndex, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the chosen samples start in this epoch."""
        starts, lengths = samples.starts[chosen], samples.lengths[chosen]
        if self.epoch == FIRST_EPOCH:
            return starts
        documents = np.searchsorted(store.offsets, starts, side="right") - 1
        drawn = random_below(
            samples.max_tokens, compute_key(self.seed, self.epoch, Stream.CUTS), torch.from_numpy(documents)
        )
        moved = starts + drawn.numpy() - samples.max_tokens // 2
        return np.clip(moved, store.offsets[documents], store.offsets[documents + 1] - lengths)
