"""BERT's corruption of a batch: choose tokens, replace most of them, remember what they were.

B rows, S row length, V vocabulary, N streams of random numbers. Everything is a function of (seed, epoch, sample,
position): no generator, no host synchronisation, the same integers on every device. The numbers are those of
`random_uint32(key, sample_ids, positions)`; all streams are drawn at once, because on a GPU the number of operations
costs time, not their size.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from maskwright.batch import IGNORED_LABEL, PackedBatch, Questions, find_changes
from maskwright.errors import InputError
from maskwright.randomness import UINT32_RANGE, Stream, compute_key, hash_counters, threshold

MAX_WORD_TOKENS = 8
"""Longer words are cut into pieces of this many tokens, as a text without spaces would else be one word."""


@dataclass(frozen=True)
class WordLayout:
    """The place of each token in its word; (B, S) each."""

    first_places: Tensor
    """Where in the row its word begins."""
    offsets: Tensor
    """How many tokens of its word come before it."""
    sizes: Tensor
    """How many tokens its word has."""
    is_cut: Tensor
    """True where a word must begin: at the start of a document and around special tokens."""


@dataclass(frozen=True)
class Units:
    """Which places in the row, (B, S), lend each token their random numbers; None: its own place."""

    word: WordLayout | None = None
    """Words, which are never cut when a document's quota ends; None: single tokens."""
    draw_places: Tensor | None = None
    """For the choice: the same for all tokens that are chosen together."""
    fate_places: Tensor | None = None
    """For the replacement: [MASK], a random token or the token itself."""


def lay_out_words(batch: PackedBatch, is_maskable: Tensor) -> WordLayout:
    """Words of maskable tokens; documents, special tokens and padding end a word, and long ones are cut."""
    if batch.word_starts is None:
        raise InputError(
            "the batch does not say where words begin; build its loader with with_words=True, give a padded dictionary"
            " 'word_starts' or 'word_ids', or mask by tokens"
        )
    is_cut = find_changes(torch.where(is_maskable, batch.document_ids, -1)) | ~is_maskable
    places = list_places(is_cut)
    offsets = (places - find_last(batch.word_starts | is_cut)) % MAX_WORD_TOKENS
    first_places = places - offsets
    sizes = torch.zeros_like(places).scatter_add_(1, first_places, torch.ones_like(places)).gather(1, first_places)
    return WordLayout(first_places, offsets, sizes, is_cut)


def list_places(like: Tensor) -> Tensor:
    """(B, S) the place of each token in its row."""
    return torch.arange(like.shape[1], device=like.device).expand(like.shape)


def find_last(flags: Tensor) -> Tensor:
    """For each token the last place up to it that is flagged; the first place of a row counts as flagged."""
    return torch.where(flags, list_places(flags), 0).cummax(dim=1).values


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
    """Uniform integers in [0, 2**32), independent of `high_bits`."""
    return hashes & (UINT32_RANGE - 1)


def _as_int64(key: int) -> int:
    return key - (1 << 64) if key >= 1 << 63 else key


Selection = Literal["exact", "bernoulli"]
Strategy = Literal["token", "whole_word", "span", "frequency", "adaptive"]
_STREAMS = (Stream.ROUNDING, Stream.SELECTION, Stream.CORRUPTION, Stream.REPLACEMENT)


@dataclass(frozen=True)
class CorruptedBatch(Questions):
    """A masked batch: in `batch` chosen tokens are replaced, `labels` (B, S) are their original ids, and -100
    elsewhere.
    """

    num_slots: int
    """The static size of the prediction head's input; more slots than chosen tokens, for any batch."""
    is_causal: Tensor | None = None
    """(B, S) true for tokens that may see only what comes before them; unset, all see both sides."""

    @property
    def selected(self) -> Tensor:
        return self.labels != IGNORED_LABEL

    def num_overflowing(self) -> Tensor:
        """Chosen tokens without a slot, as a tensor on the device; almost always 0."""
        return (self.selected.sum() - self.num_slots).clamp(min=0)


class Masker(ABC):
    """Chooses tokens and replaces them: mostly by [MASK], sometimes by a random token; some stay unchanged."""

    strategy: ClassVar[Strategy]

    def __init__(
        self,
        vocab_size: int,
        mask_token_id: int,
        special_token_ids: Sequence[int],
        random_token_ratio: float = 0.1,
        unchanged_ratio: float = 0.1,
        selection: Selection = "exact",
    ) -> None:
        self.mask_token_id = mask_token_id
        self.random_token_ratio = random_token_ratio
        self.unchanged_ratio = unchanged_ratio
        self.selection = selection
        self._is_special = torch.zeros(vocab_size, dtype=torch.bool, device="cpu")
        self._is_special[[mask_token_id, *special_token_ids]] = True
        self._drawable_ids = torch.nonzero(~self._is_special).flatten()
        if not len(self._drawable_ids):
            raise InputError(f"all {vocab_size} ids of the vocabulary are special tokens; nothing can be masked")

    @property
    @abstractmethod
    def max_unit_tokens(self) -> int:
        """The most tokens that one draw decides on."""

    @abstractmethod
    def _group(self, batch: PackedBatch, is_maskable: Tensor, hashes: Tensor) -> Units:
        """Which tokens are chosen together; the low bits of `hashes` are free to use."""

    def _weigh(self, draws: Tensor, input_ids: Tensor) -> Tensor:
        """Draws of which the smallest are chosen; here no token is preferred."""
        return draws

    def settings(self) -> dict[str, Any]:
        """The settings of this masker, as arguments of `build_masker`."""
        return {
            "strategy": self.strategy,
            "random_token_ratio": self.random_token_ratio,
            "unchanged_ratio": self.unchanged_ratio,
            "selection": self.selection,
        }

    @cached_property
    def token_masker(self) -> TokenMasker:
        """A masker of single tokens in BERT's way, used to evaluate all models, however they were trained."""
        specials = torch.nonzero(self._is_special).flatten().tolist()
        return TokenMasker(len(self._is_special), self.mask_token_id, specials)

    def corrupt(self, batch: PackedBatch, ratio: float, seed: int, epoch: int) -> CorruptedBatch:
        """Mask `ratio` of each sample's ordinary tokens."""
        if not 0.0 <= ratio <= 1.0:
            raise InputError(f"the mask ratio is {ratio}; it must lie in [0, 1]")
        is_maskable = self.find_maskable(batch)
        sample_hashes = hash_samples(batch.sample_ids, [compute_key(seed, epoch, stream) for stream in _STREAMS])
        hashes = hash_positions(sample_hashes[1:], batch.positions)
        draws, fates, replacements = high_bits(hashes)
        units = self._group(batch, is_maskable, hashes[0])
        draws = self._weigh(draws, batch.input_ids)
        if units.draw_places is not None:
            draws = draws.gather(1, units.draw_places)
        if units.fate_places is not None:
            fates = fates.gather(1, units.fate_places)

        if self.selection == "bernoulli":
            selected = is_maskable & (draws < threshold(ratio))
        else:
            rounding = high_bits(sample_hashes[0])
            selected = select_exact_share(batch.document_ids, is_maskable, draws, rounding, ratio, units.word)
        labels = torch.where(selected, batch.input_ids, IGNORED_LABEL)
        drawn = self._drawable_ids[(replacements * len(self._drawable_ids)) >> 32]
        replaced = torch.where(fates < threshold(self.random_token_ratio), drawn, self.mask_token_id)
        stays = ~selected | (fates >= threshold(1.0 - self.unchanged_ratio))
        corrupted = torch.where(stays, batch.input_ids, replaced.to(batch.input_ids.dtype))
        num_slots = compute_num_slots(labels.numel(), ratio, self.max_unit_tokens)
        return CorruptedBatch(batch.with_input_ids(corrupted), labels, num_slots)

    def find_maskable(self, batch: PackedBatch) -> Tensor:
        """(B, S) true for ordinary tokens: neither special nor padding."""
        self._move_tables(batch.input_ids.device)
        return ~(self._is_special[batch.input_ids] | batch.is_padding)

    def _move_tables(self, device: torch.device) -> None:
        if self._is_special.device != device:
            self._is_special = self._is_special.to(device)
            self._drawable_ids = self._drawable_ids.to(device)


class TokenMasker(Masker):
    """Chooses single tokens."""

    strategy: ClassVar[Strategy] = "token"
    max_unit_tokens = 1

    def _group(self, batch: PackedBatch, is_maskable: Tensor, hashes: Tensor) -> Units:
        return Units()


def compute_num_slots(num_tokens: int, ratio: float, max_unit_tokens: int = 1) -> int:
    """Six standard deviations above the expected number of chosen tokens, for both kinds of selection.

    The variance is at most `max_unit_tokens` times the expectation: a unit of u tokens, chosen with probability p,
    adds p * u to the one and at most p * u * u to the other.
    """
    expected = num_tokens * ratio
    slack = 6 * math.sqrt(expected * max_unit_tokens)
    return min(num_tokens, math.ceil(expected + slack) + 8 * max_unit_tokens)


def select_exact_share(
    document_ids: Tensor,
    is_maskable: Tensor,
    draws: Tensor,
    rounding: Tensor,
    ratio: float,
    word: WordLayout | None = None,
) -> Tensor:
    """In each document the tokens with the smallest draws, until they are `ratio * n` of its n maskable ones.

    The last token is chosen at random so that the expected number is exact; `rounding` is the same for all tokens of a
    document. With `word`, whole words are chosen: one of s tokens of which only r fit is taken with probability r / s,
    so that the expectation stays exact and the number is off by less than s. Draws must then be the same for all tokens
    of a word.
    """
    num_rows, length = document_ids.shape
    document_ids = document_ids.long()

    def count_by_document(flags: Tensor) -> Tensor:
        counts = torch.zeros(num_rows, length + 1, dtype=torch.long, device=flags.device)
        return counts.scatter_add_(1, document_ids, flags.long())

    quota = count_by_document(is_maskable).gather(1, document_ids) * threshold(ratio)

    sort_keys = (document_ids << 33) | (torch.where(is_maskable, 0, 1) << 32) | draws
    order = torch.argsort(sort_keys, dim=1, stable=True)
    document_sizes = count_by_document(torch.ones_like(is_maskable))
    document_starts = (document_sizes.cumsum(1) - document_sizes).gather(1, document_ids)
    place = torch.empty_like(order).scatter_(
        1, order, torch.arange(length, device=order.device).expand(num_rows, length).contiguous()
    )
    num_before = place - document_starts
    if word is None:
        return is_maskable & (num_before < (quota + rounding) >> 32)
    needed = ((num_before - word.offsets) << 32) + word.sizes * (UINT32_RANGE - rounding)
    return is_maskable & (needed <= quota)
