"""Similarity: the cosine between the vectors of two texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from maskwright.batch import PackedBatch
from maskwright.errors import InputError
from maskwright.inference.embedding import Embed, PreparedText
from maskwright.inference.kind import Kind, Name, Prepared
from maskwright.inference.samples import EncodedBatch, Sample
from maskwright.inference.windows import Floats

Pair = tuple[str, str]
_PAIR_SIZE = 2
_SMALLEST_NORM = 1e-12


@dataclass(frozen=True)
class PreparedPair(Prepared):
    texts: tuple[PreparedText, PreparedText]


class Similarity(Kind[Pair, dict[str, float]]):
    """`{"score": cosine}` of a pair of texts, by the vectors that `Embed` gives them."""

    item_name = "pair"

    def __init__(self, embed: Embed) -> None:
        if embed.settings.pooling == "none":
            raise InputError("pooling is none, which gives many vectors to a text; to compare texts use mean or cls")
        self._embed = embed
        self.encoder = embed.encoder
        self.pad_token_id = embed.pad_token_id

    def prepare(self, items: Sequence[Pair], name: Name) -> list[PreparedPair]:
        def name_text(place: int) -> str:
            return f"the {'second' if place % 2 else 'first'} text of {name(place // 2)}"

        texts = self._embed.prepare([text for pair in items for text in pair], name_text)
        pairs = zip(texts[::2], texts[1::2], strict=True)
        return [PreparedPair([*first.samples, *second.samples], (first, second)) for first, second in pairs]

    def find_causal(self, batch: PackedBatch) -> Tensor | None:
        return self._embed.find_causal(batch)

    def reduce(self, batch: EncodedBatch[Sample]) -> Sequence[Floats]:
        return self._embed.reduce(batch)

    def answer(self, prepared: PreparedPair, reduced: Sequence[Floats]) -> dict[str, float]:
        num_first = len(prepared.texts[0].samples)
        parts = (reduced[:num_first], reduced[num_first:])
        first, second = (self._embed.answer(text, part) for text, part in zip(prepared.texts, parts, strict=True))
        norms = max(float(np.linalg.norm(first) * np.linalg.norm(second)), _SMALLEST_NORM)
        return {"score": float(first @ second) / norms}

    def record(self, item: Pair, answer: dict[str, float]) -> dict[str, Any]:
        return {"first": item[0], "second": item[1], **answer}

    def as_items(self, inputs: Any) -> tuple[list[Pair], bool]:
        """One pair is a tuple of two texts; several are a list of such."""
        if isinstance(inputs, tuple) and len(inputs) == _PAIR_SIZE and all(isinstance(text, str) for text in inputs):
            return [inputs], True
        if isinstance(inputs, str) or not isinstance(inputs, Iterable):
            raise InputError(f"the input is a {type(inputs).__name__}; expected a pair of texts or a list of pairs")
        pairs: list[Pair] = []
        for pair in inputs:
            if isinstance(pair, str) or len(pair) != _PAIR_SIZE or not all(isinstance(text, str) for text in pair):
                raise InputError(f"an input is {pair!r:.80}; expected a pair of texts")
            pairs.append((pair[0], pair[1]))
        return pairs, False
