"""Embeddings: one vector to a text, or one to each of its tokens; similarity, the cosine between two texts' vectors.

N texts, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding
from torch import Tensor, nn

from maskwright.batch import PackedBatch
from maskwright.errors import InputError
from maskwright.inference.layout import EncodedBatch, Reduction, Sample, list_rows
from maskwright.inference.runner import FindCausal, Kind, Name, Prepared
from maskwright.inference.texts import (
    NUM_SPECIALS,
    Floats,
    as_texts,
    average_windows,
    choose_max_length,
    encode_texts,
    find_windows,
    join_windows,
    list_inputs,
    refuse_unknown,
)
from maskwright.suggestions import suggest
from maskwright.tasks.heads import TEXT_ROLES, pool
from maskwright.text.tokenizer.tokenizer import Tokenizer

Pooling = Literal["mean", "cls", "none"]
_SMALLEST_NORM = 1e-12
Pair = tuple[str, str]
_PAIR_SIZE = 2


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
    prompts: Mapping[str, str] = field(default_factory=dict)
    """In its place, by what a text is: a query or a document."""
    lowercases: bool = False

    def with_options(
        self,
        pooling: str | None = None,
        normalize: bool | None = None,
        max_length: int | None = None,
        role: str | None = None,
    ) -> EmbeddingSettings:
        """These settings, but for what is given."""
        if pooling is not None and pooling not in get_args(Pooling):
            raise InputError(f"no pooling '{pooling}'{suggest(pooling, get_args(Pooling))}")
        if role is not None and role not in TEXT_ROLES:
            raise InputError(f"no role '{role}' of a text{suggest(role, TEXT_ROLES)}")
        return replace(
            self,
            prompt=self.prompts.get(role or "", self.prompt),
            pooling=self.pooling if pooling is None else cast(Pooling, pooling),
            normalize=self.normalize if normalize is None else normalize,
            max_length=self.max_length if max_length is None else max_length,
        )


@dataclass(slots=True)
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
        self._ends = tokenizer.cls_token_id, tokenizer.sep_token_id

    def tokenize(self, items: Sequence[str]) -> list[Encoding]:
        return self.tokenizer.encode_without_spans(self._complete_all(items))

    def prepare(
        self, items: Sequence[str], name: Name, tokenized: Sequence[Encoding] | None = None
    ) -> list[PreparedText]:
        rows = encode_texts(self.tokenizer, self.encoder, self._complete_all(items), name, tokenized)
        return [self._cut(ids) for ids in rows]

    def _complete_all(self, texts: Sequence[str]) -> Sequence[str]:
        is_changed = self.settings.prompt or self.settings.lowercases
        return [self._complete(text) for text in texts] if is_changed else texts

    def prepare_ids(self, rows: Sequence[Sequence[int]]) -> list[PreparedText]:
        """Texts that are tokenized already; special tokens may stand around them."""
        refuse_unknown(rows, self.encoder)
        cls, sep = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        return [self._cut([*row[1:-1]] if len(row) > 1 and (row[0], row[-1]) == (cls, sep) else [*row]) for row in rows]

    def _complete(self, text: str) -> str:
        if not text.strip():
            return text  # refused as empty, whatever would stand before it
        text = self.settings.prompt + text
        return text.lower() if self.settings.lowercases else text

    def _cut(self, ids: list[int]) -> PreparedText:
        cls, sep = self._ends
        if len(ids) <= self._size:
            return PreparedText((Sample([cls, *ids, sep]),), ((0, len(ids)),))
        windows = find_windows(len(ids), self._size)
        return PreparedText([Sample([cls, *ids[start:stop], sep]) for start, stop in windows], windows)

    def find_causal(self, batch: PackedBatch) -> Tensor | None:
        return None if self._causal is None else self._causal(batch)

    def reduce(self, batch: EncodedBatch[Sample]) -> Reduction:
        if self.settings.pooling == "none":
            ends = np.cumsum(batch.lengths)[:-1]
            return Reduction((batch.hidden.float(),), lambda hidden: _copy_parts(hidden, ends))
        pooled = pool(batch.states, batch.batch, batch.packed.num_documents, self.settings.pooling)
        return Reduction((batch.list_samples(pooled).float(),), list_rows)

    def answer(self, prepared: PreparedText, reduced: Sequence[Floats]) -> Floats:
        if self.settings.pooling == "none":
            vectors = join_windows(reduced, prepared.windows)
        else:
            vectors = average_windows(reduced, [len(sample.ids) for sample in prepared.samples])
        return _normalize(vectors) if self.settings.normalize else vectors

    def answer_all(self, asked: Sequence[tuple[PreparedText, Sequence[Floats]]]) -> Sequence[Floats]:
        if self.settings.pooling == "none" or any(len(reduced) != 1 for _, reduced in asked):
            return super().answer_all(asked)
        vectors = [vector for _, (vector,) in asked]
        return list(_normalize(np.stack(vectors))) if self.settings.normalize else vectors

    @property
    def example(self) -> dict[str, Any]:
        return {"embedding": np.zeros((1, 1) if self.settings.pooling == "none" else 1, np.float32)}

    def describe_answer(self, answer: Floats) -> dict[str, Any]:
        return {"embedding": answer}

    def as_items(self, inputs: Any) -> tuple[list[str], bool]:
        return as_texts(inputs)


def _normalize(vectors: Floats) -> Floats:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True).clip(_SMALLEST_NORM))


def _copy_parts(hidden: Tensor, ends: NDArray[np.int64]) -> list[Floats]:
    """A copy each, so that the batch's array need not be kept for a part of it."""
    return [part.copy() for part in np.split(hidden.numpy(), ends)]


@dataclass
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
        self.tokenizer = embed.tokenizer
        self.pad_token_id = embed.pad_token_id

    def prepare(self, items: Sequence[Pair], name: Name, tokenized: Any = None) -> list[PreparedPair]:
        def name_text(place: int) -> str:
            return f"the {'second' if place % 2 else 'first'} text of {name(place // 2)}"

        texts = self._embed.prepare([text for pair in items for text in pair], name_text)
        pairs = zip(texts[::2], texts[1::2], strict=True)
        return [PreparedPair([*first.samples, *second.samples], (first, second)) for first, second in pairs]

    def find_causal(self, batch: PackedBatch) -> Tensor | None:
        return self._embed.find_causal(batch)

    def reduce(self, batch: EncodedBatch[Sample]) -> Reduction:
        return self._embed.reduce(batch)

    def answer(self, prepared: PreparedPair, reduced: Sequence[Floats]) -> dict[str, float]:
        num_first = len(prepared.texts[0].samples)
        parts = (reduced[:num_first], reduced[num_first:])
        first, second = (self._embed.answer(text, part) for text, part in zip(prepared.texts, parts, strict=True))
        norms = max(float(np.linalg.norm(first) * np.linalg.norm(second)), _SMALLEST_NORM)
        return {"score": float(first @ second) / norms}

    @property
    def example(self) -> dict[str, Any]:
        return {"score": 0.0}

    def describe_input(self, item: Pair) -> dict[str, Any]:
        return {"first": item[0], "second": item[1]}

    def describe_answer(self, answer: dict[str, float]) -> dict[str, Any]:
        return answer

    def as_items(self, inputs: Any) -> tuple[list[Pair], bool]:
        """One pair is a tuple of two texts; several are a list of such."""
        if isinstance(inputs, tuple) and len(inputs) == _PAIR_SIZE and all(isinstance(text, str) for text in inputs):
            return [inputs], True
        if isinstance(inputs, str) or not isinstance(inputs, Iterable):
            raise InputError(f"the input is a {type(inputs).__name__}; expected a pair of texts or a list of pairs")
        pairs: list[Pair] = []
        for pair in inputs:
            texts = list_inputs(pair) if isinstance(pair, tuple | list) else []
            if len(texts) != _PAIR_SIZE or not all(isinstance(text, str) for text in texts):
                raise InputError(f"an input is {pair!r:.80}; expected a pair of texts")
            pairs.append((texts[0], texts[1]))
        return pairs, False
