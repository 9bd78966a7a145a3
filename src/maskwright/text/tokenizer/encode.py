"""Tokenize a stream of texts on several cores, in order.

Threads are enough: the tokenizer works without Python's lock, and one thread builds arrays while the others tokenize.
"""

from __future__ import annotations

import os
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import cast

import numpy as np
from numpy.typing import NDArray

from maskwright.text.tokenizer.tokenizer import CHUNK_CHARS, Tokenizer, group_texts, refusing_text
from maskwright.text.tokenizer.words import WordBoundaries, build_boundaries

_PARALLELISM = "TOKENIZERS_PARALLELISM"


@dataclass(frozen=True)
class EncodedTexts:
    """Texts with their ids, one after another, how many ids each has, and which ids begin a word."""

    texts: list[str]
    ids: NDArray[np.uint32]
    lengths: NDArray[np.int64]
    word_starts: NDArray[np.bool_]


def encode_texts(texts: list[str], tokenizer: Tokenizer, boundaries: WordBoundaries) -> EncodedTexts:
    """Ids without special tokens."""
    backend = tokenizer.backend
    encode = backend.encode_batch if boundaries.needs_word_ids else backend.encode_batch_fast
    flat_ids, flat_words = array("I"), array("I")  # five times quicker from lists than numpy
    counts = []
    with refusing_text(texts):
        encodings = encode(texts, add_special_tokens=False)
    for encoding in encodings:
        tokens = encoding.ids
        flat_ids.fromlist(tokens)
        counts.append(len(tokens))
        if boundaries.needs_word_ids:
            flat_words.fromlist(cast(list[int], encoding.word_ids))  # only tokens put around a text have none
    ids, lengths = np.frombuffer(flat_ids, dtype=np.uint32), np.asarray(counts, dtype=np.int64)
    word_ids = np.frombuffer(flat_words, dtype=np.uint32) if boundaries.needs_word_ids else None
    text_starts = (np.cumsum(lengths) - lengths)[lengths > 0]
    return EncodedTexts(texts, ids, lengths, boundaries.find(ids, text_starts, word_ids))


def encode_corpus(texts: Sequence[str], tokenizer: Tokenizer) -> EncodedTexts:
    """All texts at once, for a corpus that fits in memory."""
    boundaries = build_boundaries(tokenizer)
    parts = [encode_texts(group, tokenizer, boundaries) for group in group_texts(texts, CHUNK_CHARS)]
    return EncodedTexts(
        [text for part in parts for text in part.texts],
        np.concatenate([np.empty(0, np.uint32), *(part.ids for part in parts)]),
        np.concatenate([np.empty(0, np.int64), *(part.lengths for part in parts)]),
        np.concatenate([np.empty(0, bool), *(part.word_starts for part in parts)]),
    )


def encode_ids(texts: list[str], tokenizer: Tokenizer) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """The ids of texts one after another and how many each has, where it does not matter where words begin."""
    flat_ids = array("I")
    counts = []
    for encoding in tokenizer.backend.encode_batch_fast(texts, add_special_tokens=False):
        tokens = encoding.ids
        flat_ids.fromlist(tokens)
        counts.append(len(tokens))
    return np.frombuffer(flat_ids, dtype=np.uint32), np.asarray(counts, dtype=np.int64)


class TextEncoder:
    """Encodes batches of texts, each on one core, while it is open."""

    def __init__(self, tokenizer: Tokenizer, num_workers: int) -> None:
        self._tokenizer = tokenizer
        self._boundaries = build_boundaries(tokenizer)
        self._num_workers = num_workers
        self._pool = ThreadPoolExecutor(num_workers)
        self._outer_parallelism: str | None = None

    def __enter__(self) -> TextEncoder:
        """The batches are the unit of work, so the tokenizer shall not split them among threads of its own."""
        self._outer_parallelism = os.environ.get(_PARALLELISM)
        os.environ[_PARALLELISM] = "false"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
        if self._outer_parallelism is None:
            del os.environ[_PARALLELISM]
        else:
            os.environ[_PARALLELISM] = self._outer_parallelism

    def encode(self, batches: Iterable[list[str]]) -> Iterator[EncodedTexts]:
        """The batches in their order; a few are worked on ahead."""
        pending: deque[Future[EncodedTexts]] = deque()
        for texts in batches:
            pending.append(self._pool.submit(encode_texts, texts, self._tokenizer, self._boundaries))
            if len(pending) > 2 * self._num_workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
