"""An upper bound on the negative log-likelihood of texts, for any model that fills masks.

The bound of masked diffusion for a text of n tokens is the mean over all its masks, weighted so that each number k of
masked tokens is equally likely, of n/k times the loss of the masked tokens (Nie et al. 2025, equation 6). It equals the
integral over the share of masked tokens that training estimates, and the mean, over all orders of the tokens, of the
negative log-likelihood in that order. Here it is estimated with random masks. M masks for each text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.errors import InputError, check_count
from maskwright.evaluation.answers import AskedPlaces, Ids, check_finite, score_answers
from maskwright.evaluation.likelihood import compute_losses, encode_scored
from maskwright.evaluation.statistics import Floats
from maskwright.inference.texts import choose_max_length
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.text.tokenizer.tokenizer import as_tokenizer

DEFAULT_SAMPLES = 32
_COPIED_TOKENS = 1_024
"""Masked copies of a text are read together, up to so many tokens."""


@dataclass(frozen=True)
class TextBounds:
    """One value for each text, in their order."""

    bounds: Floats
    """In nats, over the text's tokens; those put around it are given, and its length is."""
    variances: Floats
    """Of the bounds as estimates, over the masks that were drawn; a little too large rather than too small."""
    num_tokens: NDArray[np.int64]


def bound_texts(
    model: MaskedLanguageModel,
    tokenizer: Any,
    texts: Sequence[str],
    *,
    num_samples: int = DEFAULT_SAMPLES,
    seed: int = 0,
    max_length: int | None = None,
) -> TextBounds:
    """Bounds from `num_samples` masks of each text; numbers of masked tokens are stratified, which lowers the variance.

    A text longer than `max_length` (None: as long as the model takes) is scored in parts, whose bounds add up. Masks
    are a function of (seed, place of the text), so two models with one tokenizer are asked the same.
    """
    check_count("samples", num_samples, 2)
    if model.evaluates_causally:
        raise InputError("the model reads from left to right, so its likelihood is exact; measure it with pll")
    tokenizer = as_tokenizer(tokenizer)
    size = choose_max_length(model.encoder, max_length) - 2
    sequences, _ = encode_scored(model, tokenizer, texts)
    owners, parts = _cut(sequences, size)
    copies: list[NDArray[np.int64]] = []

    def ask() -> Iterator[AskedPlaces]:
        for number, part in enumerate(parts):
            generator = np.random.default_rng((seed, number))
            selected = draw_masks(len(part) - 2, num_samples, generator)
            at_once = max(1, _COPIED_TOKENS // len(part))
            for start in range(0, num_samples, at_once):
                rows, places = np.nonzero(selected[start : start + at_once])
                copies.append(number * num_samples + start + rows)
                yield _mask(part, min(at_once, num_samples - start), rows, places + 1, tokenizer.mask_token_id)

    losses = list(score_answers(model, tokenizer.pad_token_id, ask(), compute_losses))
    numbers = np.concatenate(copies)
    shape = (len(parts), num_samples)
    totals = np.bincount(numbers, np.concatenate(losses), math.prod(shape)).reshape(shape).astype(np.float64)
    check_finite(totals)
    lengths = np.asarray([len(part) - 2 for part in parts])
    drawn = totals * lengths[:, None] / np.bincount(numbers, minlength=math.prod(shape)).reshape(shape)

    def add_up(values: NDArray[Any]) -> Floats:
        return np.bincount(owners, values, len(texts)).astype(np.float64)

    return TextBounds(add_up(drawn.mean(1)), add_up(_estimate_variances(drawn)), add_up(lengths).astype(np.int64))


def draw_masks(num_tokens: int, num_samples: int, generator: np.random.Generator) -> NDArray[np.bool_]:
    """(M, num_tokens) true for masked tokens: each number of them, from 1 to all, is as likely as the others.

    The M numbers come from the M parts of the unit interval, one from each.
    """
    shares = (np.arange(num_samples) + generator.random(num_samples)) / num_samples
    counts = np.minimum(1 + (shares * num_tokens).astype(np.int64), num_tokens)
    ranks = generator.random((num_samples, num_tokens)).argsort(1).argsort(1)
    return ranks < counts[:, None]


def _estimate_variances(drawn: Floats) -> Floats:
    """Of the means over stratified draws (parts, M): by differences of neighbors, whose strata hardly differ."""
    squares = np.square(np.diff(drawn, axis=1)).sum(1)
    num_samples = drawn.shape[1]
    return squares / (2 * (num_samples - 1) * num_samples)


def _cut(sequences: Sequence[Ids], size: int) -> tuple[NDArray[np.int64], list[Ids]]:
    """Parts with the tokens around them, and the number of each one's text."""
    owners, parts = [], []
    for number, sequence in enumerate(sequences):
        for start in range(1, len(sequence) - 1, size):
            inner = sequence[start : min(start + size, len(sequence) - 1)]
            owners.append(number)
            parts.append(np.concatenate([sequence[:1], inner, sequence[-1:]]))
    return np.asarray(owners), parts


def _mask(part: Ids, num_copies: int, rows: Ids, places: Ids, mask_token_id: int) -> AskedPlaces:
    copied = np.repeat(part[None], num_copies, axis=0)
    copied[rows, places] = mask_token_id
    flat = rows * len(part) + places
    return AskedPlaces(copied.ravel(), num_documents=num_copies, places=flat, labels=part[places])
