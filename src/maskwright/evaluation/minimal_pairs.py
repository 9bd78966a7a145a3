"""Minimal pairs: does a model find the acceptable sentence of two more probable? (BLiMP, Warstadt et al. 2020)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.evaluation.likelihood import score_texts
from maskwright.evaluation.records import read_records
from maskwright.objectives.masked_lm import MaskedLanguageModel


@dataclass(frozen=True)
class MinimalPair:
    good: str
    bad: str
    paradigm: str
    """BLiMP's `UID`."""
    phenomenon: str
    """BLiMP's `linguistics_term`."""
    field: str


@dataclass(frozen=True)
class PairVerdicts:
    """One value for each pair, in their order."""

    points: NDArray[np.float64]
    """1 where the good sentence is more probable, 1/2 where both are equal, 0 where the bad one is."""
    fits: NDArray[np.bool_]
    """Whether the model takes sentences of these lengths."""


def read_pairs(sources: Sequence[str]) -> list[MinimalPair]:
    """Pairs of BLiMP's files as published; a group that a record does not name is called like its file."""
    return [
        MinimalPair(
            record.read_text("sentence_good"),
            record.read_text("sentence_bad"),
            record.read_label("UID"),
            record.read_label("linguistics_term"),
            record.read_label("field"),
        )
        for record in read_records(sources)
    ]


def judge_pairs(
    model: MaskedLanguageModel, tokenizer: Any, pairs: Sequence[MinimalPair], *, word_l2r: bool = False
) -> PairVerdicts:
    """Compare the scores of `score_texts`, which are sums, without a correction for length."""
    sentences = [sentence for pair in pairs for sentence in (pair.good, pair.bad)]
    scores = score_texts(model, tokenizer, sentences, word_l2r=word_l2r)
    good, bad = scores.log_likelihoods[0::2], scores.log_likelihoods[1::2]
    return PairVerdicts((1 + np.sign(good - bad)) / 2, scores.fits[0::2] & scores.fits[1::2])
