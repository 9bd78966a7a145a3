"""Embeddings: one vector to a text, or one to each of its tokens. N texts, T tokens, D width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from torch import Tensor, nn

from maskwright.batch import PackedBatch
from maskwright.errors import InputError
from maskwright.inference.kind import Kind, Name, Prepared
from maskwright.inference.runner import FindCausal
from maskwright.inference.samples import EncodedBatch, Sample
from maskwright.inference.texts import NUM_SPECIALS, as_texts, choose_max_length, encode_texts
from maskwright.inference.windows import Floats, average_windows, find_windows, join_windows
from maskwright.suggestions import suggest
from maskwright.text.tokenizer.tokenizer import Tokenizer

Pooling = Literal["mean", "cls", "none"]
_SMALLEST_NORM = 1e-12


@dataclass(frozen=True)
class EmbeddingSettings:
    """How texts become vectors."""

    pooling: Pooling = "mean"
    """The mean of a text's tokens, its first token, or every token; special tokens count."""
    normalize: bool = False
    """Whether vectors get length 1."""
    max_length: int | None = None
    """Tokens of a window over longer texts; None: as many as the model takes."""
    prompt: str = ""
    """Put before each text."""
    lowercases: bool = False

    def with_options(
        self, pooling: str | None = None, normalize: bool | None = None, max_length: int | None = None
    ) -> EmbeddingSettings:
        """These settings, but for what is given."""
        if pooling is not None and pooling not in get_args(Pooling):
            raise InputError(f"no pooling '{pooling}'{suggest(pooling, get_args(Pooling))}")
        return replace(
            self,
            pooling=self.pooling if pooling is None else cast(Pooling, pooling),
            normalize=self.normalize if normalize is None else normalize,
            max_length=self.max_length if max_length is None else max_length,
        )


@dataclass(frozen=True)
class PreparedText(Prepared):
    windows: Sequence[tuple[int, int]]
    """The tokens of each sample, counted in the text without special tokens."""


class Embed(Kind[str, Floats]):
    """A vector (D,) to a text; with pooling `none` one to each token, (T, D), as the feature-extraction pipeline of
    `transformers` gives.

    A text longer than the model is read in overlapping windows. Their vectors are averaged by their number of tokens;
    with pooling `none` each token is taken from the window in which it is farther from the edge.
    """

    def __init__(
        self,
        encoder: nn.Module,
        tokenizer: Tokenizer,
        settings: EmbeddingSettings | None = None,
        causal: FindCausal | None = None,
    ) -> None:
        self.settings = settings or EmbeddingSettings()
        self.encoder = encoder
        self.tokenizer = tokenizer
        self.pad_token_id = tokenizer.pad_token_id
        self._causal = causal
        self._size = choose_max_length(encoder, self.settings.max_length) - NUM_SPECIALS

    def prepare(self, items: Sequence[str], name: Name) -> list[PreparedText]:
        rows = encode_texts(self.tokenizer, self.encoder, [self._complete(text) for text in items], name)
        return [self._cut(ids) for ids in rows]

    def _complete(self, text: str) -> str:
        if not text.strip():
            return text  # refused as empty, whatever would stand before it
        text = self.settings.prompt + text
        return text.lower() if self.settings.lowercases else text

    def _cut(self, ids: list[int]) -> PreparedText:
        cls, sep = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        windows = find_windows(len(ids), self._size)
        return PreparedText([Sample([cls, *ids[start:stop], sep]) for start, stop in windows], windows)

    def find_causal(self, batch: PackedBatch) -> Tensor | None:
        return None if self._causal is None else self._causal(batch)

    def reduce(self, batch: EncodedBatch[Sample]) -> Sequence[Floats]:
        hidden = batch.hidden.float()
        match self.settings.pooling:
            case "mean":
                pooled = torch.segment_reduce(hidden, "mean", lengths=batch.lengths, axis=0)
            case "cls":
                pooled = hidden[batch.starts]
            case "none":
                return [part.copy() for part in np.split(hidden.cpu().numpy(), batch.starts[1:].cpu().numpy())]
        return list(pooled.cpu().numpy())

    def answer(self, prepared: PreparedText, reduced: Sequence[Floats]) -> Floats:
        if self.settings.pooling == "none":
            vectors = join_windows(reduced, prepared.windows)
        else:
            vectors = average_windows(reduced, [len(sample.ids) for sample in prepared.samples])
        if not self.settings.normalize:
            return vectors
        return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True).clip(_SMALLEST_NORM)

    def record(self, item: str, answer: Floats) -> dict[str, Any]:
        return {"text": item, "embedding": answer}

    def as_items(self, inputs: Any) -> tuple[list[str], bool]:
        return as_texts(inputs)
