"""A tokenized corpus in memory, and its cutting into samples that fit a row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class TokenStore:
    """All ids in one array; document d is `ids[offsets[d]:offsets[d + 1]]`, without special tokens."""

    ids: NDArray[np.integer]
    offsets: NDArray[np.int64]
    word_bits: NDArray[np.uint8] | None = None
    """A bit for each id, eight to a byte as `np.packbits` lays them: whether a word begins there. None: not known."""

    @classmethod
    def from_documents(cls, documents: Iterable[Sequence[int]], vocab_size: int) -> TokenStore:
        """Documents without tokens are left out."""
        dtype = np.uint16 if vocab_size <= 1 << 16 else np.uint32
        arrays = [np.asarray(ids, dtype=dtype) for ids in documents if len(ids)]
        offsets = np.cumsum([0, *map(len, arrays)], dtype=np.int64)
        return cls(np.concatenate(arrays) if arrays else np.empty(0, dtype), offsets)

    @classmethod
    def from_arrays(
        cls, ids: NDArray[np.integer], lengths: NDArray[np.integer], word_starts: NDArray[np.bool_], vocab_size: int
    ) -> TokenStore:
        """Documents of these lengths one after another; those without tokens are left out."""
        dtype = np.uint16 if vocab_size <= 1 << 16 else np.uint32
        offsets = np.concatenate([[0], np.cumsum(lengths[lengths > 0], dtype=np.int64)])
        return cls(ids.astype(dtype), offsets, np.packbits(word_starts))

    @property
    def num_documents(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    def count_ids(self, vocab_size: int) -> NDArray[np.int64]:
        """How often each id occurs."""
        return np.bincount(self.ids, minlength=vocab_size)


@dataclass(frozen=True)
class SampleIndex:
    """Spans of a store's ids, each short enough for a row; a long document becomes several samples."""

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @classmethod
    def build(cls, store: TokenStore, max_tokens: int) -> SampleIndex:
        document_lengths = np.diff(store.offsets)
        pieces = -(-document_lengths // max_tokens)
        document = np.repeat(np.arange(store.num_documents), pieces)
        piece = np.arange(len(document)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        starts = store.offsets[:-1][document] + piece * max_tokens
        return cls(starts, np.minimum(max_tokens, store.offsets[1:][document] - starts))

    def __len__(self) -> int:
        return len(self.starts)
