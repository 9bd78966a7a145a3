"""Texts to token ids, refused where a model could not have an answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from maskwright.errors import InputError, check_count
from maskwright.inference.kind import Name
from maskwright.models.any_encoder import find_input_embedding, find_max_length
from maskwright.text.tokenizer.tokenizer import Tokenizer

NUM_SPECIALS = 2
_UNSTATED_LENGTH = 512
"""Tokens of a window for an encoder that does not say what it takes."""
_SHOWN_CHARS = 40


def encode_texts(tokenizer: Tokenizer, encoder: nn.Module, texts: Sequence[str], name: Name) -> list[list[int]]:
    """Ids of the texts, without special tokens around them."""
    refuse_empty(texts, name)
    rows = tokenizer.encode_batch(texts)
    refuse_unknown(rows, encoder)
    return rows


def refuse_empty(texts: Sequence[str], name: Name) -> None:
    for place, text in enumerate(texts):
        if not text.strip():
            raise InputError(f"{name(place)} is empty; give it some text, or leave it out")


def refuse_unknown(rows: Sequence[Sequence[int]], encoder: nn.Module) -> None:
    """Ids that the encoder has no vector for."""
    embedding = find_input_embedding(encoder)
    if embedding is not None:
        largest = max((max(ids, default=0) for ids in rows), default=0)
        if largest >= embedding.num_embeddings:
            raise InputError(
                f"a text has token id {largest}, the model knows {embedding.num_embeddings} tokens; use the model's"
                " tokenizer"
            )


def choose_max_length(encoder: nn.Module, asked: int | None) -> int:
    """Tokens of the longest sample, the two around a text included."""
    limit = find_max_length(encoder)
    if asked is None:
        return limit or _UNSTATED_LENGTH
    check_count("max_length", asked)
    if not NUM_SPECIALS < asked <= (limit or asked):
        raise InputError(
            f"max_length is {asked}; it must be more than {NUM_SPECIALS}, the tokens around a text, and at most"
            f" {limit or 'what the encoder takes'}"
        )
    return asked


def as_texts(inputs: Any) -> tuple[list[str], bool]:
    """Texts as a list, and whether it was one alone."""
    if isinstance(inputs, str):
        return [inputs], True
    texts = list(inputs) if isinstance(inputs, Iterable) else [inputs]
    for text in texts:
        if not isinstance(text, str):
            raise InputError(f"an input is a {type(text).__name__}; expected a text or a list of texts")
    return texts, False


def quote(text: str) -> str:
    """The beginning of a text, on one line."""
    words = " ".join(text[: 2 * _SHOWN_CHARS].split())
    return f"'{words[:_SHOWN_CHARS]}...'" if len(words) > _SHOWN_CHARS else f"'{words}'"
