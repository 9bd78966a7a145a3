"""Checks of the arguments that objectives share; each mistake is one sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence

from maskwright.errors import InputError


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
