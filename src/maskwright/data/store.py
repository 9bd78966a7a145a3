"""A tokenized corpus in memory or memory-mapped, and its samples, which fit a row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO

import numpy as np
from numpy.typing import NDArray

_COUNTED_IDS = 1 << 24


@dataclass(frozen=True)
class TokenStore:
    """All ids in one array; document d is `ids[offsets[d]:offsets[d + 1]]`, without special tokens."""

    ids: NDArray[np.integer]
    offsets: NDArray[np.int64]
    word_bits: NDArray[np.uint8] | None = None
    """A bit for each id, from `np.packbits`: whether a word begins there. None: unknown."""

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
        """How often each id occurs; counted in parts, since numpy converts ids to 64 bits."""
        counts = np.zeros(max(vocab_size, 1 + int(self.ids.max(initial=0))), dtype=np.int64)
        for start in range(0, len(self.ids), _COUNTED_IDS):
            counts += np.bincount(self.ids[start : start + _COUNTED_IDS], minlength=len(counts))
        return counts


class StoreBuilder:
    """Builds a store from documents that arrive in parts; with a `file`, ids are stored there instead of in memory."""

    def __init__(self, vocab_size: int, with_words: bool, file: IO[bytes] | None = None) -> None:
        self._dtype = np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)
        self._file = file
        self._ids: list[NDArray[np.integer]] = []
        self._lengths: list[NDArray[np.integer]] = []
        self._word_bits: list[NDArray[np.uint8]] = []
        self._pending_words = np.empty(0, bool) if with_words else None
        """Word starts that do not fill a byte yet."""

    def add(
        self, ids: NDArray[np.integer], lengths: NDArray[np.integer], word_starts: NDArray[np.bool_] | None = None
    ) -> None:
        """Add documents of these lengths, one after another, and which ids begin a word, if known."""
        ids = ids.astype(self._dtype)
        if self._file is None:
            self._ids.append(ids)
        else:
            self._file.write(ids.tobytes())
        self._lengths.append(lengths[lengths > 0])
        if self._pending_words is not None:
            assert word_starts is not None
            pending = np.concatenate([self._pending_words, word_starts])
            num_whole = len(pending) // 8 * 8
            self._word_bits.append(np.packbits(pending[:num_whole]))
            self._pending_words = pending[num_whole:]

    def build(self) -> TokenStore:
        lengths = np.concatenate([np.empty(0, np.int64), *self._lengths])
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        word_bits = None
        if self._pending_words is not None:
            word_bits = np.concatenate([*self._word_bits, np.packbits(self._pending_words)])
        if self._file is None or not offsets[-1]:
            return TokenStore(np.concatenate([np.empty(0, self._dtype), *self._ids]), offsets, word_bits)
        self._file.flush()
        return TokenStore(np.memmap(self._file, self._dtype, mode="r"), offsets, word_bits)


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
