"""Sources mixed by temperature: the share of a source is proportional to its size to a power, which phases change.

A run is one stream of rows, of which an epoch is as many as all sources hold. In the stream each source goes round and
round through its own rows, so that none is seen a second time before all were seen. Which rows stand at a place of the
stream is a function of (seed, place) alone, whatever the batches, ranks and interruptions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from maskwright.randomness import Stream, compute_key, permutation

_SHARE_BITS = 30
_BLOCK_ROWS = 2048
"""Rows that are shuffled together, of all sources."""
_GOLDEN_SHARE = 0x9E3779B9
MOST_PASSES = 64
"""Numbers of passes that masks tell apart within an epoch."""


@dataclass(frozen=True)
class MixingSource:
    """A source of text, in one or several shards."""

    name: str
    weight: float = 1.0
    start: float = 0.0
    """The share of the run at which it joins."""


@dataclass(frozen=True)
class Mixture:
    """How a run mixes its sources."""

    sources: Sequence[MixingSource]
    shard_sources: Sequence[int]
    """The source of each shard."""
    phases: Sequence[tuple[float, float]]
    """The share of the run at which each phase ends, and its power of the sizes."""
    num_rows: float
    """Rows of the whole run; infinite if nobody knows."""
    first_epoch: int = 0

    @property
    def changes(self) -> bool:
        """Whether shares change during the run."""
        return len({power for _, power in self.phases}) > 1 or any(source.start for source in self.sources)

    def find_shares(self, progress: float, sizes: Sequence[int]) -> list[float]:
        """The share of each source, from its size in rows."""
        power = next((power for end, power in self.phases if progress < end), self.phases[-1][1])
        wanted = [
            source.weight * size**power if size and source.start <= progress else 0.0
            for source, size in zip(self.sources, sizes, strict=True)
        ]
        return [one / sum(wanted) for one in wanted]

    def list_changes(self) -> list[float]:
        """The shares of the run at which the shares of the sources change, 0 among them."""
        ends = [end for end, _ in self.phases[:-1]]
        return sorted({0.0, *ends, *(source.start for source in self.sources)})


@dataclass(frozen=True)
class _Segment:
    """A part of the stream in which shares stay: from its first place on, so many of each source before."""

    begin: int
    counts: tuple[int, ...]
    shares: tuple[int, ...]
    """In units of 2**-30."""

    def count(self, source: int, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows of a source before places of the segment; rounded by an offset of its own, so never backwards."""
        offset = source * _GOLDEN_SHARE % (1 << _SHARE_BITS)
        return self.counts[source] + ((self.shares[source] * (places - self.begin) + offset) >> _SHARE_BITS)


class MixedOrder:
    """The rows of an epoch, block by block; as `EpochOrder`, which mixes by fixed weights."""

    def __init__(self, row_counts: Sequence[int], mixture: Mixture, *, seed: int, epoch: int) -> None:
        self._row_counts, self._seed = row_counts, seed
        self._shards: list[list[int]] = [[] for _ in mixture.sources]
        for shard, source in enumerate(mixture.shard_sources):
            self._shards[source].append(shard)
        self._sizes = [sum(row_counts[shard] for shard in shards) for shards in self._shards]
        self._key = compute_key(seed, epoch, Stream.ORDER)
        length = sum(self._sizes)
        begin = (epoch - mixture.first_epoch) * length
        self._blocks = self._list_blocks(mixture, begin, begin + length)
        self._ends = np.cumsum([sum(last - first for first, last in block) for block in self._blocks], dtype=np.int64)
        first = self._blocks[0]
        self._first_passes = [first[source][0] // max(1, size) for source, size in enumerate(self._sizes)]
        self._block_rows = lru_cache(maxsize=2)(self._build_block)
        self._shuffle = lru_cache(maxsize=2 * len(row_counts) + 2)(_shuffle)

    @property
    def num_rows(self) -> int:
        return int(self._ends[-1])

    def locate(self, start: int, stop: int) -> NDArray[np.int64]:
        """The rows at places `start` to `stop` of the epoch: shard, row within it, and number of the pass."""
        found = [np.empty((3, 0), np.int64)]
        stop = min(stop, self.num_rows)
        while start < stop:
            block = int(np.searchsorted(self._ends, start, side="right"))
            begin = int(self._ends[block - 1]) if block else 0
            until = min(stop, int(self._ends[block]))
            found.append(self._block_rows(block)[:, start - begin : until - begin])
            start = until
        return np.concatenate(found, axis=1)

    def _list_blocks(self, mixture: Mixture, begin: int, end: int) -> list[list[tuple[int, int]]]:
        """For each block and source, the places in the source's own stream: from the first to behind the last."""
        blocks: list[list[tuple[int, int]]] = []
        changes = [min(change * mixture.num_rows, end) if change else 0 for change in mixture.list_changes()]
        edges = [int(change) for change in changes] + [max(end, int(changes[-1]))]
        counts = tuple(0 for _ in mixture.sources)
        for number, (first, last) in enumerate(pairwise(edges)):
            shares = mixture.find_shares(mixture.list_changes()[number], self._sizes)
            segment = _Segment(first, counts, tuple(round(share * (1 << _SHARE_BITS)) for share in shares))
            low, high = max(first, begin), min(last, end)
            if low < high:
                places = np.append(np.arange(low, high, _BLOCK_ROWS, dtype=np.int64), high)
                of_sources = [segment.count(source, places).tolist() for source in range(len(counts))]
                blocks += [
                    [(places[block], places[block + 1]) for places in of_sources] for block in range(len(places) - 1)
                ]
            counts = tuple(int(segment.count(source, np.array(last))) for source in range(len(counts)))
        return blocks

    def _build_block(self, block: int) -> NDArray[np.int64]:
        parts = [self._find_rows(source, first, last) for source, (first, last) in enumerate(self._blocks[block])]
        rows = np.concatenate(parts, axis=1)
        return rows[:, permutation(rows.shape[1], compute_key(self._key, block, Stream.ROWS)).numpy()]

    def _find_rows(self, source: int, first: int, last: int) -> NDArray[np.int64]:
        """The rows at places of a source's own stream: its shards, and the rows in them, in a new order each time."""
        found = [np.empty((3, 0), np.int64)]
        shards, size = self._shards[source], self._sizes[source]
        while first < last:
            number, offset = divmod(first, size)
            key = compute_key(compute_key(self._seed, source, Stream.MIXTURE), number, Stream.ORDER)
            for place in permutation(len(shards), key).tolist():
                shard = shards[place]
                num_rows = self._row_counts[shard]
                if offset < num_rows:
                    shuffled = self._shuffle(num_rows, self._seed, shard, number)
                    rows = shuffled[offset : offset + last - first]
                    passes = (number - self._first_passes[source]) % MOST_PASSES
                    found.append(np.stack([np.full_like(rows, shard), rows, np.full_like(rows, passes)]))
                    first += len(rows)
                    offset += len(rows)
                    if first == last:
                        break
                offset -= num_rows
        return np.concatenate(found, axis=1)


def _shuffle(num_rows: int, seed: int, shard: int, number: int) -> NDArray[np.int64]:
    key = compute_key(compute_key(seed, shard, Stream.MIXTURE), number, Stream.ROWS)
    return permutation(num_rows, key).numpy()
