"""Samples as pairs of segments: which two spans of a shard make [CLS] a [SEP] b [SEP], and their label.

A sample is cut in two, and the label says whether the second segment follows the first; in half of the pairs it does
not. Cut, partner and label are functions of (seed, epoch, sample), so epochs differ and no state is saved. R samples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from maskwright.batch import IGNORED_LABEL, PackedBatch
from maskwright.data.assembly import NUM_SPECIALS, Array, BatchAssembler, RowPlan, SpecialIds, read_bits
from maskwright.data.shards import Shards
from maskwright.data.store import TokenStore
from maskwright.errors import InputError
from maskwright.randomness import Stream, compute_key, random_uint32, threshold

PairKind = Literal["nsp", "sop"]
NUM_PAIR_SPECIALS = 3
"""A pair is wrapped in [CLS] and [SEP], with a [SEP] between its segments."""
MIN_PAIR_TOKENS = 4
"""Shorter samples are not cut."""
FOLLOWS, DOES_NOT_FOLLOW = 0, 1
_NUM_PARTNER_DRAWS = 8


@dataclass(frozen=True)
class Pairs:
    """Two spans of a store's ids for each sample, all (R,); a second length of 0 means a single segment."""

    first_starts: Array
    first_lengths: Array
    second_starts: Array
    second_lengths: Array
    labels: Array
    """`FOLLOWS`, `DOES_NOT_FOLLOW`, or the ignored label."""


@dataclass(frozen=True)
class PairDraws:
    """Random numbers for samples, one stream per decision."""

    seed: int
    epoch: int

    def draw(self, stream: Stream, numbers: Array, num_draws: int = 1) -> Array:
        """(R, num_draws) integers below 2**32 for samples of these numbers."""
        key = compute_key(self.seed, self.epoch, stream)
        drawn = random_uint32(key, torch.from_numpy(numbers)[:, None], torch.arange(num_draws))
        return drawn.numpy()


class Pairing(ABC):
    """Makes pairs from samples; a pair has no more tokens than its sample."""

    @abstractmethod
    def check(self, shards: Shards, max_tokens: int) -> None:
        """Refuse a corpus that has no pairs of this kind, or pairs with more tokens than a row has room for."""

    @abstractmethod
    def pair(self, store: TokenStore, plan: RowPlan, samples: Array, numbers: Array, draws: PairDraws) -> Pairs:
        """The pairs of some samples of a shard; `numbers` tell samples apart over all shards and passes."""


class SentenceOrder(Pairing):
    """Whether the two halves are in order or swapped (Lan et al. 2019, section 3.1)."""

    def check(self, shards: Shards, max_tokens: int) -> None:
        """Any text can be cut."""

    def pair(self, store: TokenStore, plan: RowPlan, samples: Array, numbers: Array, draws: PairDraws) -> Pairs:
        starts, lengths = plan.samples.starts[samples], plan.samples.lengths[samples]
        cuts = cut_samples(store, starts, lengths, numbers, draws)
        is_pair = cuts < lengths
        is_swapped = is_pair & _flip(numbers, draws)
        return Pairs(
            np.where(is_swapped, starts + cuts, starts),
            np.where(is_swapped, lengths - cuts, cuts),
            np.where(is_swapped, starts, starts + cuts),
            np.where(is_swapped, cuts, lengths - cuts),
            np.where(is_pair, np.where(is_swapped, DOES_NOT_FOLLOW, FOLLOWS), IGNORED_LABEL),
        )


class NextSentence(Pairing):
    """Whether the second segment continues the first or ends another document (Devlin et al. 2018, section 3.1).

    A foreign segment is as long as the one it replaces, or shorter by part of a word, so that lengths do not give the
    label away. Pairs for which no other document was found have no label.
    """

    def check(self, shards: Shards, max_tokens: int) -> None:
        if shards.num_documents < 2:
            raise InputError(
                f"next-sentence pairs take segments from other documents, the corpus holds {shards.num_documents};"
                " give more documents or use sentence-order pairs"
            )

    def pair(self, store: TokenStore, plan: RowPlan, samples: Array, numbers: Array, draws: PairDraws) -> Pairs:
        starts, lengths = plan.samples.starts[samples], plan.samples.lengths[samples]
        cuts = cut_samples(store, starts, lengths, numbers, draws)
        wanted = lengths - cuts
        partners, has_partner = _find_partners(store, plan, starts, wanted, numbers, draws)
        is_labelled = (cuts < lengths) & has_partner
        is_foreign = is_labelled & _flip(numbers, draws)
        ends = plan.samples.starts[partners] + plan.samples.lengths[partners]
        tails = _walk_to_word_start(store, ends - np.maximum(wanted, 1), 1, np.maximum(wanted - 1, 0))
        return Pairs(
            starts,
            cuts,
            np.where(is_foreign, tails, starts + cuts),
            np.where(is_foreign, ends - tails, wanted),
            np.where(is_labelled, np.where(is_foreign, DOES_NOT_FOLLOW, FOLLOWS), IGNORED_LABEL),
        )


def build_pairing(kind: PairKind) -> Pairing:
    """`nsp`: next-sentence prediction; `sop`: sentence-order prediction."""
    if kind not in ("nsp", "sop"):
        raise InputError(f"the kind of pairs is '{kind}'; known are nsp (next sentence) and sop (sentence order)")
    return NextSentence() if kind == "nsp" else SentenceOrder()


def cut_samples(store: TokenStore, starts: Array, lengths: Array, numbers: Array, draws: PairDraws) -> Array:
    """The length of each sample's first segment: a quarter to three quarters, at a word's beginning if known.

    Sentence ends are unknown, so the place is random. Samples too short to cut keep their whole length.
    """
    shortest = lengths // 4
    room = lengths - 2 * shortest
    drawn = draws.draw(Stream.PAIR_CUT, numbers)[:, 0]
    beyond = (drawn * room) >> 32
    places = _walk_to_word_start(store, starts + shortest + beyond, -1, beyond)
    places = _walk_to_word_start(store, places, 1, room - 1 - beyond)
    return np.where(lengths < MIN_PAIR_TOKENS, lengths, places - starts)


def _flip(numbers: Array, draws: PairDraws) -> NDArray[np.bool_]:
    """True for half of the samples."""
    return draws.draw(Stream.PAIR_LABEL, numbers)[:, 0] < threshold(0.5)


def _find_partners(
    store: TokenStore, plan: RowPlan, starts: Array, wanted: Array, numbers: Array, draws: PairDraws
) -> tuple[Array, NDArray[np.bool_]]:
    """A sample of another document with at least `wanted` tokens for each sample, and whether one was found.

    Of several draws the first from another document counts; a document that holds half of a shard's text fails all
    of them once in 256 times.
    """
    first_ranks = np.searchsorted(plan.samples.lengths, wanted, sorter=plan.by_length)[:, None]
    drawn = draws.draw(Stream.PAIR_PARTNER, numbers, _NUM_PARTNER_DRAWS)
    ranks = first_ranks + ((drawn * (len(plan.samples) - first_ranks)) >> 32)
    candidates = plan.by_length[ranks]
    own_document = np.searchsorted(store.offsets, starts, side="right")[:, None]
    begins, ends = store.offsets[own_document - 1], store.offsets[own_document]
    candidate_starts = plan.samples.starts[candidates]
    is_other = (candidate_starts < begins) | (candidate_starts >= ends)
    chosen = is_other.argmax(axis=1)[:, None]
    return np.take_along_axis(candidates, chosen, 1)[:, 0], np.take_along_axis(is_other, chosen, 1)[:, 0]


def _walk_to_word_start(store: TokenStore, places: Array, step: Literal[-1, 1], max_steps: Array) -> Array:
    """The nearest word start in one direction; the place itself if none is near or words are unknown."""
    if store.word_bits is None:
        return places
    found = places.copy()
    for walked in range(int(max_steps.max(initial=0)) + 1):
        is_inside = ~read_bits(store.word_bits, found)
        if not is_inside.any():
            break
        goes_on = is_inside & (walked < max_steps)
        found = np.where(goes_on, found + step, np.where(is_inside, places, found))
        if not goes_on.any():
            break
    return found


class PairAssembler(BatchAssembler):
    """Adds token types (0 for [CLS] a [SEP], 1 for b [SEP]) and a label at the [CLS] of each pair that has one."""

    def __init__(
        self,
        num_rows: int,
        row_length: int,
        specials: SpecialIds,
        with_words: bool = False,
        *,
        pairing: Pairing,
        draws: PairDraws,
    ) -> None:
        super().__init__(num_rows, row_length, specials, with_words)
        self._pairing = pairing
        self._draws = draws
        self._token_types = np.zeros(num_rows * row_length, dtype=np.int64)
        self._pair_labels = np.full(num_rows * row_length, IGNORED_LABEL, dtype=np.int64)

    def add(
        self, rows: Array, counts: Array, store: TokenStore, plan: RowPlan, samples: Array, sample_ids: Array
    ) -> None:
        pairs = self._pairing.pair(store, plan, samples, sample_ids, self._draws)
        sizes = pairs.first_lengths + NUM_SPECIALS
        sizes += np.where(pairs.second_lengths > 0, pairs.second_lengths + 1, 0)
        target, positions, is_last = self.lay_out(rows, counts, sizes, sample_ids)

        middle = pairs.first_lengths + 1  # the position of the first [SEP]
        from_middle = positions - np.repeat(middle, sizes)
        is_second = from_middle > 0
        first_source = np.repeat(pairs.first_starts - 1, sizes) + positions
        second_source = np.repeat(pairs.second_starts - 1, sizes) + from_middle
        source = np.where(is_second, second_source, first_source)
        is_first = positions == 0
        self._write_stored(target, store, source, is_first, is_separator=is_last | (from_middle == 0))
        self._token_types[target] = is_second
        self._pair_labels[target[is_first]] = pairs.labels

    def finish(self) -> PackedBatch:
        return replace(
            super().finish(),
            token_type_ids=torch.from_numpy(self._token_types.reshape(self._shape)),
            pair_labels=torch.from_numpy(self._pair_labels.reshape(self._shape)),
        )
