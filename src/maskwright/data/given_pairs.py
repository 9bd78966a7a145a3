"""Pairs that come as pairs, such as premise and hypothesis: packed as they are, nothing asked about their order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.batch import IGNORED_LABEL
from maskwright.data.assembly import Array
from maskwright.data.loader import PackedLoader
from maskwright.data.pairs import MIN_PAIR_TOKENS, NUM_PAIR_SPECIALS, PairDraws, Pairing, Pairs
from maskwright.data.rows import RowPlan
from maskwright.data.shards import Shards
from maskwright.data.store import TokenStore
from maskwright.errors import InputError


@dataclass(frozen=True, kw_only=True)
class PairStore(TokenStore):
    """Documents of two segments, each document short enough for a row."""

    first_lengths: NDArray[np.int64]
    """Tokens of each document's first segment."""

    @classmethod
    def from_pairs(
        cls, pairs: Iterable[tuple[Sequence[int], Sequence[int]]], vocab_size: int, max_tokens: int
    ) -> PairStore:
        """Where both segments have more than `max_tokens` together, the longer one loses its end, as in BERT."""
        documents: list[list[int]] = []
        first_lengths = []
        for number, (first, second) in enumerate(pairs):
            if not len(first) or not len(second):
                raise InputError(f"pair {number} has a segment without tokens; leave such pairs out")
            first_length, second_length = _fit(len(first), len(second), max_tokens)
            documents.append([*first[:first_length], *second[:second_length]])
            first_lengths.append(first_length)
        store = TokenStore.from_documents(documents, vocab_size)
        return cls(store.ids, store.offsets, first_lengths=np.asarray(first_lengths, dtype=np.int64))


class GivenPairs(Pairing):
    """The pairs of `PairStore`s, without a label."""

    def check(self, shards: Shards, max_tokens: int) -> None:
        for store in map(shards.store, range(shards.num_shards)):
            if not isinstance(store, PairStore):
                raise InputError("the tokens do not say where second segments begin; use PairStore.from_pairs")
            longest = int(np.diff(store.offsets).max(initial=0))
            if longest > max_tokens:
                raise InputError(
                    f"a pair has {longest} tokens, a row has room for {max_tokens}; use PairStore.from_pairs with"
                    f" max_tokens={max_tokens}"
                )

    def pair(self, store: TokenStore, plan: RowPlan, samples: Array, numbers: Array, draws: PairDraws) -> Pairs:
        assert isinstance(store, PairStore)
        starts, first_lengths = plan.samples.starts[samples], store.first_lengths[samples]
        second_lengths = plan.samples.lengths[samples] - first_lengths
        labels = np.full(len(samples), IGNORED_LABEL)
        return Pairs(starts, first_lengths, starts + first_lengths, second_lengths, labels)


def build_pair_loader(
    pairs: Iterable[tuple[Sequence[int], Sequence[int]]], *, vocab_size: int, row_length: int, **options: Any
) -> PackedLoader:
    """A loader over pairs of token ids without special tokens; `options` are those of `PackedLoader`."""
    room = max(row_length - NUM_PAIR_SPECIALS, MIN_PAIR_TOKENS)  # the loader refuses rows shorter than that
    store = PairStore.from_pairs(pairs, vocab_size, room)
    return PackedLoader(store, row_length=row_length, pairing=GivenPairs(), **options)


def _fit(first: int, second: int, max_tokens: int) -> tuple[int, int]:
    """Lengths with at most `max_tokens` together: the longer is cut until both are equal, then both."""
    if first + second <= max_tokens:
        return first, second
    half = max_tokens // 2
    if first < second:
        kept = min(first, half)
        return kept, max_tokens - kept
    kept = min(second, half)
    return max_tokens - kept, kept
