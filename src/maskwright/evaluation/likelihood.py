"""Likelihood of texts: perplexity, pseudo-log-likelihood of masked models, log-likelihood of causal ones.

The pseudo-log-likelihood (Salazar et al. 2020) sums the log-probability of each token when it alone is masked. With
`word_l2r` the tokens after it in its word are masked too (PLL-word-l2r, Kauf & Ivanova 2023): else a word of several
tokens scores too well, as each is given away by the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from maskwright.batch import PackedBatch
from maskwright.errors import InputError
from maskwright.evaluation.answers import AskedPlaces, Ids, check_finite, score_answers
from maskwright.models.any_encoder import find_max_length
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.text.tokenizer.encode import encode_corpus
from maskwright.text.tokenizer.tokenizer import Tokenizer, as_tokenizer
from maskwright.training.batches import iterate_batches
from maskwright.training.held_out import evaluate
from maskwright.untrusted import shorten

_SAMPLE_TOKENS = 1_024
"""Masked copies of a text are read together, up to so many tokens."""


@dataclass(frozen=True)
class TextScores:
    """One value for each text, in their order."""

    log_likelihoods: NDArray[np.float64]
    """In nats, over the text's tokens; those put around it are given, not scored. 0 where the text does not fit."""
    num_tokens: NDArray[np.int64]
    fits: NDArray[np.bool_]
    """Whether the model takes a text of this length. A part of it would be another text, so others are not scored."""


def score_texts(
    model: MaskedLanguageModel, tokenizer: Any, texts: Sequence[str], *, word_l2r: bool = False
) -> TextScores:
    """Score texts with one masked copy for each of their tokens; a causal model reads each text once."""
    if isinstance(texts, str):
        raise InputError("texts is one text; give a list of texts, such as [text]")
    if word_l2r and model.evaluates_causally:
        raise InputError("the model reads from left to right already; leave out the word-l2r correction")
    tokenizer = as_tokenizer(tokenizer)
    sequences, words = encode_scored(model, tokenizer, texts)
    limit = find_max_length(model.encoder)
    fits = np.asarray([limit is None or len(sequence) <= limit for sequence in sequences], dtype=bool)
    units = words if word_l2r else [np.arange(len(sequence)) for sequence in sequences]
    # Equal texts are scored once, so that they tie exactly whatever batch they fall into.
    first_with: dict[bytes, int] = {}
    keys = [sequence.tobytes() + unit.tobytes() for sequence, unit in zip(sequences, units, strict=True)]
    same_as = [first_with.setdefault(key, number) for number, key in enumerate(keys)]
    asked = [number for number in first_with.values() if fits[number]]
    scores = np.zeros(len(texts))
    scores[asked] = _score_sequences(
        model, tokenizer, [sequences[number] for number in asked], [units[number] for number in asked]
    )
    num_tokens = np.asarray([len(sequence) - 2 for sequence in sequences], dtype=np.int64)
    return TextScores(scores[same_as], num_tokens, fits)


def encode_scored(
    model: MaskedLanguageModel, tokenizer: Tokenizer, texts: Sequence[str]
) -> tuple[list[Ids], list[Ids]]:
    """Ids with the tokens around them, and for each token the number of its word."""
    encoded = encode_corpus(texts, tokenizer)
    ends = np.cumsum(encoded.lengths)
    sequences, words = [], []
    for number, (start, end) in enumerate(zip(ends - encoded.lengths, ends, strict=True)):
        ids = encoded.ids[start:end].astype(np.int64)
        if not len(ids) or tokenizer.mask_token_id in ids:
            found = f"holds {tokenizer.mask_token}" if len(ids) else "has no token"
            raise InputError(f"text {number + 1}, {shorten(texts[number])}, {found}; give plain text to score")
        if ids.max() >= model.vocab_size:
            raise InputError(
                f"text {number + 1} has token id {ids.max()}, the model knows {model.vocab_size} tokens; use the"
                " model's tokenizer"
            )
        sequences.append(np.concatenate([[tokenizer.cls_token_id], ids, [tokenizer.sep_token_id]]))
        word_numbers = np.cumsum(encoded.word_starts[start:end])
        words.append(np.concatenate([[0], word_numbers, word_numbers[-1:] + 1]))
    return sequences, words


def _score_sequences(
    model: MaskedLanguageModel, tokenizer: Tokenizer, sequences: list[Ids], units: list[Ids]
) -> NDArray[np.float64]:
    owners: list[int] = []

    def ask() -> Iterator[AskedPlaces]:
        for number, (sequence, unit) in enumerate(zip(sequences, units, strict=True)):
            asked = (
                [_ask_next(sequence)]
                if model.evaluates_causally
                else _ask_masked(sequence, unit, tokenizer.mask_token_id)
            )
            for sample in asked:
                owners.append(number)
                yield sample

    losses = [one.sum() for one in score_answers(model, tokenizer.pad_token_id, ask(), compute_losses)]
    totals = np.bincount(np.asarray(owners, dtype=np.int64), weights=losses, minlength=len(sequences))
    scores = -totals.astype(np.float64)
    check_finite(scores)
    return scores


def compute_losses(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, reduction="none")


def _ask_masked(sequence: Ids, units: Ids, mask_token_id: int) -> Iterator[AskedPlaces]:
    """A copy for each token but the two around the text; it is masked, and what follows it in its unit."""
    length = len(sequence)
    at_a_time = max(1, _SAMPLE_TOKENS // length)
    for start in range(1, length - 1, at_a_time):
        places = np.arange(start, min(start + at_a_time, length - 1))
        copies = np.repeat(sequence[None], len(places), axis=0)
        copies[(np.arange(length) >= places[:, None]) & (units == units[places][:, None])] = mask_token_id
        yield AskedPlaces(
            copies.ravel(),
            num_documents=len(places),
            places=np.arange(len(places)) * length + places,
            labels=sequence[places],
        )


def _ask_next(sequence: Ids) -> AskedPlaces:
    """A text as it is, asked for every token but the two around it."""
    return AskedPlaces(sequence, places=np.arange(1, len(sequence) - 1), labels=sequence[1:-1])


def calculate_perplexity(
    mlm_model: MaskedLanguageModel,
    dataset: Iterable[PackedBatch | Mapping[str, Tensor]],
    num_batches: int | None = 100,
) -> float:
    """exp(mean loss) over the masked tokens of up to `num_batches` batches (None: all).

    It is the perplexity of final.json and of `maskwright eval MODEL mlm`: fixed masks on 15% of single tokens,
    whatever the ratio and the strategy of training, so the figures of models compare. A causal model is asked for
    every next token instead.
    """
    if num_batches is not None and num_batches < 1:
        raise InputError(f"num_batches is {num_batches}; it must be at least 1, or None for all")
    batches = islice(iterate_batches(dataset), num_batches)
    return evaluate(mlm_model, batches).perplexity
