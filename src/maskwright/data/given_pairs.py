"""Pairs of texts from the data, such as premise and hypothesis, packed as they are, without a question about their
order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.batch import IGNORED_LABEL
from maskwright.data.assembly import Array, RowPlan
from maskwright.data.loader import PackedLoader
from maskwright.data.pairs import MIN_PAIR_TOKENS, NUM_PAIR_SPECIALS, PairDraws, Pairing, Pairs
from maskwright.data.shards import Shards
from maskwright.data.store import TokenStore
from maskwright.errors import InputError


@dataclass(frozen=True)
class Segments:
    """Segments one after another: their ids, the length of each, and which ids begin a word, if known."""

    ids: NDArray[np.integer]
    lengths: Array
    word_starts: NDArray[np.bool_] | None = None


@dataclass(frozen=True, kw_only=True)
class PairStore(TokenStore):
    """Documents of two segments, each document short enough for a row."""

    first_lengths: NDArray[np.int64]
    """Tokens of each document's first segment."""
    num_cut: int = 0
    """The number of pairs that were truncated to fit a row."""
    num_empty: int = 0
    """The number of pairs dropped because a segment has no tokens."""

    @classmethod
    def from_pairs(
        cls, pairs: Iterable[tuple[Sequence[int], Sequence[int]]], vocab_size: int, max_tokens: int
    ) -> PairStore:
        """Where both segments have more than `max_tokens` together, the longer one loses its end, as in BERT."""
        firsts: list[Sequence[int]] = []
        seconds: list[Sequence[int]] = []
        for number, (first, second) in enumerate(pairs):
            if not len(first) or not len(second):
                raise InputError(f"pair {number} has a segment without tokens; leave such pairs out")
            firsts.append(first)
            seconds.append(second)
        return cls.from_segments(_concatenate(firsts), _concatenate(seconds), vocab_size, max_tokens)

    @classmethod
    def from_segments(cls, firsts: Segments, seconds: Segments, vocab_size: int, max_tokens: int) -> PairStore:
        """As `from_pairs`, for first and second segments apart; pairs with a segment without tokens are left out."""
        is_empty = (firsts.lengths == 0) | (seconds.lengths == 0)
        is_cut = ~is_empty & (firsts.lengths + seconds.lengths > max_tokens)
        first_lengths, second_lengths = _fit(firsts.lengths, seconds.lengths, max_tokens)
        first_lengths, second_lengths = np.where(is_empty, 0, first_lengths), np.where(is_empty, 0, second_lengths)
        in_firsts = _mark_beginnings(firsts.lengths, first_lengths)
        in_seconds = _mark_beginnings(seconds.lengths, second_lengths)
        is_second = np.repeat(
            np.tile([False, True], len(is_empty)), np.stack([first_lengths, second_lengths], axis=1).ravel()
        )
        ids = _merge(is_second, firsts.ids[in_firsts], seconds.ids[in_seconds])
        word_bits = None
        if firsts.word_starts is not None and seconds.word_starts is not None:
            word_starts = _merge(is_second, firsts.word_starts[in_firsts], seconds.word_starts[in_seconds])
            word_bits = np.packbits(word_starts)
        return cls(
            ids.astype(np.uint16 if vocab_size <= 1 << 16 else np.uint32),
            np.concatenate([[0], np.cumsum((first_lengths + second_lengths)[~is_empty], dtype=np.int64)]),
            word_bits,
            first_lengths=first_lengths[~is_empty],
            num_cut=int(is_cut.sum()),
            num_empty=int(is_empty.sum()),
        )


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
    store = PairStore.from_pairs(pairs, vocab_size, find_room(row_length))
    return PackedLoader(store, row_length=row_length, pairing=GivenPairs(), **options)


def find_room(row_length: int) -> int:
    """Tokens of a pair that fit a row; the loader refuses rows that are shorter than the shortest pair."""
    return max(row_length - NUM_PAIR_SPECIALS, MIN_PAIR_TOKENS)


def _concatenate(segments: Sequence[Sequence[int]]) -> Segments:
    arrays = [np.asarray(segment, dtype=np.int64) for segment in segments]
    return Segments(np.concatenate([np.empty(0, np.int64), *arrays]), np.asarray([*map(len, arrays)], dtype=np.int64))


def _merge(is_second: NDArray[np.bool_], firsts: NDArray[Any], seconds: NDArray[Any]) -> NDArray[Any]:
    merged = np.empty(len(is_second), firsts.dtype)
    merged[~is_second], merged[is_second] = firsts, seconds
    return merged


def _mark_beginnings(lengths: Array, kept: Array) -> NDArray[np.bool_]:
    """Whether each token of segments of these lengths is among the first `kept` of its segment."""
    places = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return places < np.repeat(kept, lengths)


def _fit(first: Array, second: Array, max_tokens: int) -> tuple[Array, Array]:
    """Lengths with at most `max_tokens` together: the longer is cut until both are equal, then both."""
    shorter = np.minimum(np.minimum(first, second), max_tokens // 2)
    rest = max_tokens - shorter
    fits, is_first_shorter = first + second <= max_tokens, first < second
    return (
        np.where(fits, first, np.where(is_first_shorter, shorter, rest)),
        np.where(fits, second, np.where(is_first_shorter, rest, shorter)),
    )
