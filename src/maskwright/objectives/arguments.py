"""Checks of the arguments that objectives share; each mistake is one sentence."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskwright.errors import InputError, InputWarning
from maskwright.models.any_encoder import find_input_embedding
from maskwright.text.tokenizer.tokenizer import Tokenizer, as_tokenizer

BERT_MASK_TOKEN_ID = 103
_MAX_LOSS_OF_TYING = 12.0
"""The largest excess over the loss of guessing at which the output is tied by default: a table's standard deviation may
be 0.3 at a width of 256 and 0.19 at 768, ten times what new ones of ours have; that of `nn.Embedding` is 1.
"""
_NUM_TRIED_STATES = 16
_TRIAL_SEED = 0x7461626C65
"""A seed that nobody uses for a table: equal numbers in states and table would look like correct predictions."""


class Vocabulary(NamedTuple):
    """The ids that a model works with."""

    size: int
    mask_token_id: int
    special_token_ids: Sequence[int]


def settle_vocabulary(
    tokenizer: Any,
    vocab_size: int | None,
    mask_token_id: int | None,
    special_token_ids: Sequence[int],
    num_embedded: int | None,
) -> Vocabulary:
    """The given arguments, completed from the tokenizer; an `InputError` if the two contradict each other.

    `num_embedded` is the encoder's vocabulary size, if known; a few spare rows are allowed.
    """
    if tokenizer is None:
        if vocab_size is None:
            raise InputError("vocab_size is missing; give the tokenizer's vocab_size, or the tokenizer itself")
        return Vocabulary(vocab_size, BERT_MASK_TOKEN_ID if mask_token_id is None else mask_token_id, special_token_ids)
    tokenizer = as_tokenizer(tokenizer)
    settled = Vocabulary(
        max(tokenizer.vocab_size, num_embedded or 0) if vocab_size is None else vocab_size,
        tokenizer.mask_token_id if mask_token_id is None else mask_token_id,
        sorted({*special_token_ids, *tokenizer.all_special_ids}),
    )
    check_tokenizer(tokenizer, *settled)
    return settled


def check_tokenizer(
    tokenizer: Tokenizer, vocab_size: int, mask_token_id: int, special_token_ids: Sequence[int]
) -> None:
    """Compare a model's ids with those of the tokenizer of its data."""
    check_tokenizer_size(tokenizer, vocab_size)
    if mask_token_id != tokenizer.mask_token_id:
        raise InputError(
            f"the model's mask_token_id is {mask_token_id}, which is '{tokenizer.token(mask_token_id)}' to the"
            f" tokenizer; its mask token is '{tokenizer.mask_token}', {tokenizer.mask_token_id}: give the model"
            f" tokenizer=... or mask_token_id={tokenizer.mask_token_id}"
        )
    around = dict.fromkeys([tokenizer.cls_token_id, tokenizer.sep_token_id])
    unprotected = [token_id for token_id in around if token_id not in special_token_ids]
    if unprotected:
        named = " and ".join(f"'{tokenizer.token(token_id)}' ({token_id})" for token_id in unprotected)
        raise InputError(
            f"the model would mask {named}, which the tokenizer puts around texts: its special_token_ids are"
            f" {list(special_token_ids)}; give the model tokenizer=... or special_token_ids={tokenizer.all_special_ids}"
        )


def check_tokenizer_size(tokenizer: Tokenizer, vocab_size: int) -> None:
    if tokenizer.vocab_size > vocab_size:
        raise InputError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, the model's vocab_size is {vocab_size}; use the model's"
            f" tokenizer, or build the encoder and the model with vocab_size={tokenizer.vocab_size}"
        )


def check_vocabulary(vocab_size: int, mask_token_id: int, special_token_ids: Sequence[int]) -> None:
    if not isinstance(vocab_size, int) or vocab_size < 2:
        raise InputError(f"vocab_size is {vocab_size}; it must be an integer of at least 2, the tokenizer's size")
    if not 0 <= mask_token_id < vocab_size:
        raise InputError(
            f"mask_token_id is {mask_token_id}, outside the vocabulary of {vocab_size} (0 to {vocab_size - 1});"
            " give the tokenizer's mask_token_id"
        )
    for token_id in special_token_ids:
        if not 0 <= token_id < vocab_size:
            raise InputError(
                f"special token id {token_id} is outside the vocabulary of {vocab_size} (0 to {vocab_size - 1});"
                " give the tokenizer's all_special_ids"
            )


def check_mask_ratio(ratio: float) -> None:
    if not 0.0 < ratio <= 1.0:
        raise InputError(f"mask_ratio is {ratio}; it must lie in (0, 1], BERT used 0.15")


def check_corruption(random_token_ratio: float, unchanged_ratio: float, selection: str) -> None:
    for name, ratio in (("random_token_ratio", random_token_ratio), ("unchanged_ratio", unchanged_ratio)):
        if not 0.0 <= ratio <= 1.0:
            raise InputError(f"{name} is {ratio}; it must lie in [0, 1]")
    if random_token_ratio + unchanged_ratio > 1.0:
        raise InputError(
            f"random_token_ratio {random_token_ratio} + unchanged_ratio {unchanged_ratio} is"
            f" {random_token_ratio + unchanged_ratio:g}; together they can be at most 1, the rest becomes [MASK]"
        )
    if selection not in ("exact", "bernoulli"):
        raise InputError(f"selection is '{selection}'; known are exact, bernoulli")


def check_head_dropout(rate: float) -> None:
    if not 0.0 <= rate < 1.0:
        raise InputError(f"mlm_head_dropout is {rate}; it must lie in [0, 1), use 0.1 to pre-train and 0.05 to adapt")


def check_positive(**values: float) -> None:
    for name, value in values.items():
        if not 0.0 < value < math.inf:
            raise InputError(f"{name} is {value}; it must be a positive number")


def check_embedding(encoder: nn.Module, vocab_size: int) -> None:
    embedding = find_input_embedding(encoder)
    if embedding is not None and embedding.num_embeddings < vocab_size:
        raise InputError(
            f"the encoder embeds {embedding.num_embeddings} tokens, vocab_size is {vocab_size};"
            f" build the encoder with vocab_size={vocab_size}"
        )


def may_be_tied(table: Tensor, encoder: nn.Module) -> bool:
    """Whether a model tied to a foreign embedding table would start near the loss of guessing; warns if not."""
    if table.is_meta:
        return True
    first_loss, guessing = _measure_first_loss(table), math.log(len(table))
    if first_loss <= guessing + _MAX_LOSS_OF_TYING:
        return True
    warnings.warn(
        f"the embedding table of {type(encoder).__name__} (standard deviation {table.detach().std():.2g}) is too large"
        f" to be tied to the output: the loss would start at {first_loss:.1f}, where guessing has {guessing:.1f}; so"
        " the output got weights of its own and the table stays as it is. Choose with tie_word_embeddings=False (as"
        " now) or True (tied nevertheless)",
        InputWarning,
        stacklevel=4,
    )
    return False


@torch.no_grad()
def _measure_first_loss(table: Tensor) -> float:
    """The loss of a new, untrained head over a table (V, D)."""
    width = table.shape[1]
    states = torch.randn(_NUM_TRIED_STATES, width, generator=torch.Generator().manual_seed(_TRIAL_SEED))
    features = F.layer_norm(states, (width,)).to(table.device, table.dtype)
    logits = (features @ table.T).float()
    return float((logits.logsumexp(-1) - logits.mean(-1)).mean())
