"""Queries with documents that answer them, made of raw text: crops, titles and twins, for a contrastive loss.

Two crops of a passage (Izacard et al. 2022, Contriever), a title with what stands under it, and a text with itself, of
which dropout makes two vectors (Gao et al. 2021, SimCSE). Where a passage is cut is a function of its document, its
place and the epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch

from maskwright.errors import InputError
from maskwright.randomness import Stream, compute_key, random_uint32
from maskwright.suggestions import suggest

CROPS, TITLES, TWINS = "crops", "titles", "twins"
PAIR_KINDS = (CROPS, TITLES, TWINS)
_PASSAGE = 128
"""Words of a passage."""
_FEWEST_TO_CROP = 20
_FEWEST_IN_CROP = 5
_LEAST_SHARE, _LARGEST_SHARE = 0.1, 0.5
"""Of a passage in a crop, as Contriever's."""
_LONGEST_WORD = 15
"""Characters of a word on average; what has more is written without spaces, and cut between characters."""
_NUM_DRAWS = 4
_SEED = 0


class RawDocument(NamedTuple):
    title: str
    """Empty where there is none."""
    text: str


@dataclass(frozen=True)
class RawPair:
    query: str
    positive: str
    kind: str


def read_kinds(text: str | None) -> tuple[str, ...]:
    """The kinds in 'crops,twins'; all of them if unset."""
    if text is None:
        return PAIR_KINDS
    kinds = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for kind in kinds:
        if kind not in PAIR_KINDS:
            raise InputError(f"there are no pairs of kind '{kind}'{suggest(kind, PAIR_KINDS)}")
    return kinds


def make_pairs(document: RawDocument, number: int, kinds: Sequence[str], epoch: int) -> Iterator[RawPair]:
    """A pair of its title, and one of each passage: crops of long ones, else twins."""
    passages, joint = _cut(document.text)
    if TITLES in kinds and document.title and passages:
        yield RawPair(document.title, joint.join(passages[0]), TITLES)
    draws = random_uint32(
        compute_key(_SEED, epoch, Stream.CROPS),
        torch.tensor(number),
        torch.arange(len(passages))[:, None],
        torch.arange(_NUM_DRAWS),
    ).tolist()
    for words, drawn in zip(passages, draws, strict=True):
        if CROPS in kinds and len(words) >= _FEWEST_TO_CROP:
            yield RawPair(joint.join(_crop(words, *drawn[:2])), joint.join(_crop(words, *drawn[2:])), CROPS)
        elif TWINS in kinds:
            yield RawPair(joint.join(words), joint.join(words), TWINS)


def _cut(text: str) -> tuple[list[list[str]], str]:
    """Passages of words of about equal number, and what stands between words."""
    words, joint = text.split(), " "
    if len(text) > _LONGEST_WORD * len(words):
        words, joint = [*text.strip()], ""
    num_passages = -(-len(words) // _PASSAGE)
    bounds = [len(words) * part // max(1, num_passages) for part in range(num_passages + 1)]
    return [words[start:stop] for start, stop in pairwise(bounds)], joint


def _crop(words: Sequence[str], length_draw: int, start_draw: int) -> Sequence[str]:
    """A part of these words, from numbers below 2**32."""
    least = max(_FEWEST_IN_CROP, round(_LEAST_SHARE * len(words)))
    most = max(least, round(_LARGEST_SHARE * len(words)))
    length = least + ((most - least + 1) * length_draw >> 32)
    start = (len(words) - length + 1) * start_draw >> 32
    return words[start : start + length]
