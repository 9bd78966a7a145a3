"""How probable a model finds texts: pseudo-log-likelihood of masked models, log-likelihood of causal ones.

The pseudo-log-likelihood (Salazar et al. 2020) sums the log-probability of each token when it alone is masked. With
`word_l2r` the tokens after it in its word are masked too (PLL-word-l2r, Kauf & Ivanova 2023): else a word of several
tokens scores too well, as each is given away by the others. L sequence length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from maskwright.errors import InputError
from maskwright.evaluation.answers import check_finite, predict_places
from maskwright.evaluation.rows import Ids, group_by_length, split_batches
from maskwright.models.any_encoder import find_max_length
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.text.tokenizer.encode import encode_corpus
from maskwright.text.tokenizer.tokenizer import Tokenizer, as_tokenizer
from maskwright.training.compute.device import evaluation_mode
from maskwright.untrusted import shorten


@dataclass(frozen=True)
class TextScores:
    """One value for each text, in their order."""

    log_likelihoods: NDArray[np.float64]
    """In nats, over the text's tokens; those put around it are given, not scored. 0 where the text does not fit."""
    num_tokens: NDArray[np.int64]
    fits: NDArray[np.bool_]
    """Whether the model takes a text of this length. A part of it would be another text, so others are not scored."""


@dataclass(frozen=True)
class _Questions:
    """Sequences of one length as the model sees them, with the places and the tokens asked for."""

    sequences: Ids
    """(copies, L)"""
    rows: Ids
    """Which of the copies a place is in."""
    places: Ids
    labels: Ids
    texts: Ids
    """The number of the text that an answer counts for."""


def score_texts(
    model: MaskedLanguageModel, tokenizer: Any, texts: Sequence[str], *, word_l2r: bool = False
) -> TextScores:
    """Score texts with one masked copy for each of their tokens; a causal model reads each text once."""
    if isinstance(texts, str):
        raise InputError("texts is one text; give a list of texts, such as [text]")
    if word_l2r and model.evaluates_causally:
        raise InputError("the model reads from left to right already; leave out the word-l2r correction")
    tokenizer = as_tokenizer(tokenizer)
    sequences, words = _encode(model, tokenizer, texts)
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


def _encode(model: MaskedLanguageModel, tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[list[Ids], list[Ids]]:
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


@torch.no_grad()
def _score_sequences(
    model: MaskedLanguageModel, tokenizer: Tokenizer, sequences: list[Ids], units: list[Ids]
) -> NDArray[np.float64]:
    scores = np.zeros(len(sequences))
    device = next(model.parameters()).device
    with evaluation_mode(model):
        for numbers in group_by_length(sequences):
            stacked = np.stack([sequences[number] for number in numbers])
            stacked_units = np.stack([units[number] for number in numbers])
            for asked in (
                _ask_next(stacked, numbers, device)
                if model.evaluates_causally
                else _ask_masked(stacked, stacked_units, numbers, tokenizer.mask_token_id, device)
            ):
                logits = predict_places(model, asked.sequences, asked.rows, asked.places)
                labels = torch.from_numpy(asked.labels).to(device)
                losses = F.cross_entropy(logits, labels, reduction="none").double().cpu().numpy()
                scores -= np.bincount(asked.texts, weights=losses, minlength=len(scores))
    check_finite(scores)
    return scores


def _ask_masked(
    sequences: Ids, units: Ids, numbers: Ids, mask_token_id: int, device: torch.device
) -> Iterator[_Questions]:
    """A copy for each token but the two around the text; it is masked, and what follows it in its unit."""
    num_texts, length = sequences.shape
    all_owners = np.repeat(np.arange(num_texts), length - 2)
    all_places = np.tile(np.arange(1, length - 1), num_texts)
    for part in split_batches(len(all_owners), length, 1, device):
        owners, places = all_owners[part], all_places[part]
        copies, copied_units = sequences[owners], units[owners]
        rows = np.arange(len(owners))
        labels = copies[rows, places]
        is_later = np.arange(length) >= places[:, None]
        copies[is_later & (copied_units == copied_units[rows, places][:, None])] = mask_token_id
        yield _Questions(copies, rows, places, labels, numbers[owners])


def _ask_next(sequences: Ids, numbers: Ids, device: torch.device) -> Iterator[_Questions]:
    """Texts as they are, asked for every token but the two around them."""
    num_texts, length = sequences.shape
    for part in split_batches(num_texts, length, length - 2, device):
        texts = sequences[part]
        rows = np.repeat(np.arange(len(texts)), length - 2)
        places = np.tile(np.arange(1, length - 1), len(texts))
        yield _Questions(texts, rows, places, texts[rows, places], numbers[part][rows])
