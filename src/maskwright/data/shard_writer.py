"""Write one shard: ids stream to disk, lengths and words follow when it is closed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from maskwright.data.shards import ShardInfo

_SUFFIXES = ("ids", "lengths", "words")


def choose_ids_dtype(vocab_size: int) -> str:
    return "<u2" if vocab_size <= 1 << 16 else "<u4"


class ShardWriter:
    """Files appear under their names when `close` ends; until then they have temporary ones."""

    def __init__(self, folder: Path, name: str, ids_dtype: str, source: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._name, self._source = folder, name, source
        self._dtype = np.dtype(ids_dtype)
        self._lengths: list[NDArray[np.int64]] = []
        self._word_starts: list[NDArray[np.bool_]] = []
        self._digest = hashlib.sha256()
        self._file = self._temporary("ids").open("wb")
        self.num_documents = 0
        self.num_tokens = 0

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()
        for suffix in _SUFFIXES:
            self._temporary(suffix).unlink(missing_ok=True)

    def add(self, ids: NDArray[np.integer], lengths: NDArray[np.integer], word_starts: NDArray[np.bool_]) -> None:
        """Documents of the given lengths, their ids one after another and which of them begin a word.

        Documents without ids are left out.
        """
        encoded = ids.astype(self._dtype).tobytes()
        self._digest.update(encoded)
        self._file.write(encoded)
        kept = lengths[lengths > 0].astype(np.int64)
        self._lengths.append(kept)
        self._word_starts.append(word_starts)
        self.num_documents += len(kept)
        self.num_tokens += len(ids)

    def close(self) -> ShardInfo | None:
        """The finished shard; None, and no files, when nothing was added."""
        if not self.num_documents:
            return None
        _finish(self._file)
        lengths = np.concatenate(self._lengths)
        lengths_dtype = "<u2" if lengths.max() < 1 << 16 else "<u4"
        lengths_sha256 = self._write("lengths", lengths.astype(lengths_dtype).tobytes())
        words_sha256 = self._write("words", np.packbits(np.concatenate(self._word_starts)).tobytes())
        for suffix in _SUFFIXES:
            os.replace(self._temporary(suffix), self._folder / f"{self._name}.{suffix}")
        return ShardInfo(
            name=self._name,
            num_documents=self.num_documents,
            num_tokens=self.num_tokens,
            ids_dtype=self._dtype.str,
            lengths_dtype=lengths_dtype,
            ids_sha256=self._digest.hexdigest(),
            lengths_sha256=lengths_sha256,
            words_sha256=words_sha256,
            source=self._source,
        )

    def _write(self, suffix: str, content: bytes) -> str:
        with self._temporary(suffix).open("wb") as file:
            file.write(content)
            _finish(file)
        return hashlib.sha256(content).hexdigest()

    def _temporary(self, suffix: str) -> Path:
        return self._folder / f".{self._name}.{suffix}.tmp"


def _finish(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
