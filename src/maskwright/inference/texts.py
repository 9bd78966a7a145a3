"""Texts and pairs of texts to samples: [CLS] a [SEP], or [CLS] a [SEP] b [SEP].

What is longer than the model has several samples, windows over its tokens, whose results are put together again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding
from torch import nn

from maskwright.data.pairs import NUM_PAIR_SPECIALS
from maskwright.errors import InputError, check_count
from maskwright.inference.layout import Sample
from maskwright.inference.runner import Name
from maskwright.models.any_encoder import find_input_embedding, find_max_length
from maskwright.tasks.features import find_tokens_between
from maskwright.text.tokenizer.tokenizer import Tokenizer

NUM_SPECIALS = 2
_UNSTATED_LENGTH = 512
"""Tokens of a window for an encoder that does not say what it takes."""
_SHOWN_CHARS = 40
Pair = tuple[str, str]
TextOrPair = str | Pair
_OF_PAIR = ("the first text of ", "the second text of ")
_FEWEST_OF_A_TEXT = 4
"""Tokens that a window must have of each text of a pair."""
Floats = NDArray[np.float32]
_OVERLAP_SHARE = 4
"""Windows share a quarter of their tokens with the next, so that each token is seen with its neighbours."""


def encode_texts(
    tokenizer: Tokenizer,
    encoder: nn.Module,
    texts: Sequence[str],
    name: Name,
    tokenized: Sequence[Encoding] | None = None,
) -> list[list[int]]:
    """Ids of the texts, without special tokens around them; they may be tokenized already."""
    refuse_empty(texts, name)
    rows = tokenizer.encode_batch(texts) if tokenized is None else [one.ids for one in tokenized]
    embedding = find_input_embedding(encoder)
    if embedding is not None and tokenizer.vocab_size > embedding.num_embeddings:
        refuse_unknown(rows, encoder)
    return rows


def refuse_empty(texts: Sequence[str], name: Name) -> None:
    if all(map(str.strip, texts)):
        return
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
    texts = list_inputs(inputs) if isinstance(inputs, Iterable) else [inputs]
    if set(map(type, texts)) <= {str}:
        return texts, False
    for text in texts:
        if not isinstance(text, str):
            raise InputError(f"an input is a {type(text).__name__}; expected a text or a list of texts")
    return texts, False


def list_inputs(inputs: Any) -> list[Any]:
    """Inputs one by one; a missing one, which data frames write as NaN, is an empty text."""
    if hasattr(inputs, "notna"):  # a column of pandas, whose missing values are of several kinds
        inputs = inputs.astype(object).where(inputs.notna(), None)
    elif isinstance(inputs, list) and set(map(type, inputs)) == {str}:
        return [*inputs]
    return ["" if one is None or (isinstance(one, float) and math.isnan(one)) else one for one in inputs]


def quote(text: str) -> str:
    """The beginning of a text, on one line."""
    words = " ".join(text[: 2 * _SHOWN_CHARS].split())
    return f"'{words[:_SHOWN_CHARS]}...'" if len(words) > _SHOWN_CHARS else f"'{words}'"


class SampleCutter:
    """Every token of a text is in a sample.

    A pair that is too long keeps its shorter text whole where that fits half the room, and has windows of the longer
    one; where both are longer, their windows go side by side.
    """

    def __init__(self, tokenizer: Tokenizer, encoder: nn.Module, max_length: int | None = None) -> None:
        self._tokenizer = tokenizer
        self._encoder = encoder
        self._max_length = choose_max_length(encoder, max_length)
        self._between = find_tokens_between(tokenizer)
        self._ends = tokenizer.cls_token_id, tokenizer.sep_token_id

    def tokenize(self, items: Sequence[TextOrPair]) -> list[Encoding]:
        return self._tokenizer.encode_without_spans(_list_texts(items))

    def cut(
        self,
        items: Sequence[TextOrPair],
        name: Name,
        of_pair: Pair = _OF_PAIR,
        tokenized: Sequence[Encoding] | None = None,
    ) -> list[list[Sample]]:
        """The samples of each text or pair; `of_pair` is what an error puts before the name of a pair."""

        def name_text(number: int) -> str:
            owners = ((place, part) for place, item in enumerate(items) for part in range(_count_texts(item)))
            place, part = next(islice(owners, number, None))
            is_pair = _count_texts(items[place]) > 1
            return f"{of_pair[part] if is_pair else ''}{name(place)}"

        rows = iter(encode_texts(self._tokenizer, self._encoder, _list_texts(items), name_text, tokenized))
        return [
            self._cut_text(next(rows)) if isinstance(item, str) else self._cut_pair(next(rows), next(rows))
            for item in items
        ]

    def _cut_text(self, ids: list[int]) -> list[Sample]:
        cls, sep = self._ends
        size = self._max_length - NUM_SPECIALS
        if len(ids) <= size:
            return [Sample([cls, *ids, sep])]
        return [Sample([cls, *ids[start:stop], sep]) for start, stop in find_windows(len(ids), size)]

    def _cut_pair(self, first: list[int], second: list[int]) -> list[Sample]:
        room = self._max_length - NUM_PAIR_SPECIALS - len(self._between)
        if len(first) + len(second) <= room:
            return [self._join(first, second)]
        if room < 2 * _FEWEST_OF_A_TEXT:
            raise InputError(
                f"the longest input has {self._max_length} tokens, which is too little for windows of pairs; shorten"
                " the texts or raise max_length"
            )
        of_shorter = min(len(first), len(second), room // 2)
        first_room = of_shorter if len(first) < len(second) else room - of_shorter
        firsts, seconds = find_windows(len(first), first_room), find_windows(len(second), room - first_room)
        count = max(len(firsts), len(seconds))
        return [
            self._join(first[slice(*_take(firsts, number, count))], second[slice(*_take(seconds, number, count))])
            for number in range(count)
        ]

    def _join(self, first: list[int], second: list[int]) -> Sample:
        cls, sep = self._ends
        beginning, end = [cls, *first, sep], [*self._between, *second, sep]
        return Sample([*beginning, *end], [0] * len(beginning) + [1] * len(end))


def _list_texts(items: Sequence[TextOrPair]) -> list[str]:
    return [text for item in items for text in ([item] if isinstance(item, str) else item)]


def _count_texts(item: TextOrPair) -> int:
    return 1 if isinstance(item, str) else len(item)


def _take(windows: Sequence[tuple[int, int]], number: int, count: int) -> tuple[int, int]:
    """The window that goes with one of `count`, spread evenly over all of them."""
    return windows[number * len(windows) // count]


def find_windows(length: int, size: int) -> list[tuple[int, int]]:
    """(start, stop) of windows of at most `size` over `length` tokens; the last may be shorter."""
    if length <= size:
        return [(0, length)]
    overlap = size // _OVERLAP_SHARE
    starts = range(0, length - overlap, size - overlap)
    return [(start, min(start + size, length)) for start in starts]


def window_around(place: int, length: int, size: int) -> tuple[int, int]:
    """(start, stop) of `size` tokens with the place in the middle, as far as the text's ends allow."""
    start = max(0, min(place - size // 2, length - size))
    return start, min(start + size, length)


def average_windows(vectors: Sequence[Floats], num_tokens: Sequence[int]) -> Floats:
    """The mean of one vector to a window, each weighted by its window's number of tokens."""
    if len(vectors) == 1:
        return vectors[0]
    return np.average(np.stack(vectors), axis=0, weights=num_tokens).astype(np.float32)


def join_windows(states: Sequence[Floats], windows: Sequence[tuple[int, int]]) -> Floats:
    """One vector to a token of the whole text, from windows with a special token on each side.

    A token that two windows hold is taken from the one in which it is farther from the edge; the special tokens are
    those of the first and the last window.
    """
    parts = [states[0][:1]]
    for number, (state, (start, stop)) in enumerate(zip(states, windows, strict=True)):
        begin = start if number == 0 else (start + windows[number - 1][1]) // 2
        end = stop if number == len(windows) - 1 else (windows[number + 1][0] + stop) // 2
        parts.append(state[1 + begin - start : 1 + end - start])
    return np.concatenate([*parts, states[-1][-1:]])
