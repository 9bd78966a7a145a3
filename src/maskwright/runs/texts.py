"""The texts of a run: read from its sources, cleaned, some of them held out, and augmented in every epoch if asked.

Few texts are lists in memory; many are in files without a name, which the system frees when the process ends, however
it ends. A resumed run reads its sources again. Whether augmentation changes a text, and which words the text loses, is
a function of (seed, epoch, sample, place of the word) alone.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice, repeat
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import numpy as np
import torch

from maskwright.batch import PackedBatch
from maskwright.config import Config
from maskwright.data.loader import PackedLoader
from maskwright.data.shards import Shards
from maskwright.errors import InputError
from maskwright.randomness import Stream, compute_key, random_uint32, threshold
from maskwright.sections.data import (
    AugmentationConfig,
    QualityConfig,
    SourceConfig,
    build_sources,
    check_can_hold_out,
    hold_pairs,
)
from maskwright.storage import naming
from maskwright.text.corpus import ReadingReport
from maskwright.text.quality import Document, DocumentCleaner, PairCleaner, QualityReport, TextPair
from maskwright.text.sources import read_pairs, read_source

Say = Callable[[str], None]
SPILL_CHARS = 256_000_000
"""How much text a run keeps in memory."""
_HASH_RANGE = 1 << 64
_LENGTH_BYTES = 4
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Documents:
    """Texts that can be iterated repeatedly: lists, or views of files."""

    train: Sequence[Iterable[str]]
    """Those of each source; of pairs, the first and the second text by turns."""
    held_out: Sequence[Iterable[str]]
    """Likewise."""
    are_pairs: bool = False


class Spill:
    """Where the texts and tokens of a run are: in memory, or, beyond `SPILL_CHARS` of text, in files without a name."""

    def __init__(self, wanted_folder: Path, say: Say) -> None:
        self._wanted_folder, self._say = wanted_folder, say
        self._num_chars = 0

    @property
    def is_active(self) -> bool:
        return self._num_chars > SPILL_CHARS

    @property
    def folder(self) -> Path:
        """The run's folder, or its nearest existing parent; system folders for temporary files are often in memory."""
        for folder in (self._wanted_folder, *self._wanted_folder.absolute().parents):
            if folder.is_dir() and os.access(folder, os.W_OK):
                return folder
        return Path(tempfile.gettempdir())

    def open_file(self) -> IO[bytes]:
        with naming(self.folder):
            return tempfile.TemporaryFile(dir=self.folder)

    def collect(self, documents: Iterable[Document]) -> Iterable[Document]:
        """Collect documents for repeated iteration."""
        kept: list[Document] = []
        file: _DocumentFile | None = None
        for document in documents:
            was_active = self.is_active
            self._num_chars += len(document) if isinstance(document, str) else sum(map(len, document))
            if self.is_active and not was_active:
                self._say(
                    f"the texts have more than {SPILL_CHARS:,} characters: they and their tokens are kept in temporary"
                    f" files in {self.folder}, not in memory; maskwright prepare tokenizes them once for all runs"
                )
            if self.is_active and file is None:
                file = _DocumentFile(self)
                for earlier in kept:
                    file.add(earlier)
                kept = []
            if file is None:
                kept.append(document)
            else:
                file.add(document)
        return kept if file is None else file


class _DocumentFile:
    """Documents one after another, each text led by twice its number of bytes, and one more for a text of a pair."""

    def __init__(self, spill: Spill) -> None:
        self._folder, self._file = spill.folder, spill.open_file()

    def add(self, document: Document) -> None:
        texts = (document,) if isinstance(document, str) else document
        with naming(self._folder):
            for text in texts:
                encoded = text.encode(errors="surrogatepass")
                size = len(encoded) << 1 | (len(texts) > 1)
                self._file.write(size.to_bytes(_LENGTH_BYTES, "little") + encoded)

    def __iter__(self) -> Iterator[Document]:
        texts = self._read()
        for text, is_of_pair in texts:
            yield TextPair(text, next(texts)[0]) if is_of_pair else text

    def _read(self) -> Iterator[tuple[str, bool]]:
        """Each text, and whether it is one of a pair; several readers may be at different places."""
        with naming(self._folder):
            self._file.flush()
        position, pending = 0, b""
        while True:
            self._file.seek(position)
            chunk = self._file.read(_CHUNK_BYTES)
            position += len(chunk)
            if not chunk:
                return
            pending += chunk
            start = 0
            while start + _LENGTH_BYTES <= len(pending):
                size = int.from_bytes(pending[start : start + _LENGTH_BYTES], "little")
                end = start + _LENGTH_BYTES + (size >> 1)
                if end > len(pending):
                    break
                yield pending[start + _LENGTH_BYTES : end].decode(errors="surrogatepass"), bool(size & 1)
                start = end
            pending = pending[start:]


class _ChosenTexts:
    """The texts of some of the documents; a choice of None is all of them."""

    def __init__(self, documents: Iterable[Document], choice: Sequence[int] | None) -> None:
        self._documents, self._choice = documents, choice

    def __iter__(self) -> Iterator[str]:
        choice = repeat(1) if self._choice is None else self._choice
        for document, is_chosen in zip(self._documents, choice, strict=False):
            if is_chosen:
                yield from (document,) if isinstance(document, str) else document


def _choose(documents: Iterable[Document], choice: Sequence[int] | None = None) -> Iterable[str]:
    """A list for texts in memory, a view for texts in files."""
    chosen = _ChosenTexts(documents, choice)
    return list(chosen) if isinstance(documents, list) else chosen


class Cleaner(Protocol):
    """Keeps documents of one kind, texts or pairs of them."""

    @property
    def report(self) -> QualityReport: ...

    def clean(self, documents: Iterable[Any], /) -> Iterator[Any]: ...


def read_documents(config: Config, warn: Say, spill: Spill | None = None) -> Documents:
    """The training and held-out texts."""
    spill = spill or build_spill(config, warn)
    sources = build_sources(config.data.train)
    held_out = [] if config.data.validation is None else build_sources(config.data.validation)
    are_pairs = hold_pairs([*sources, *held_out])
    if are_pairs and config.pairs.task is not None:
        raise InputError(
            f"pairs.task={config.pairs.task} makes pairs and asks about them, data.train gives pairs (second_column);"
            " unset one of the two"
        )
    cleaner = _build_cleaner(config.quality, are_pairs)
    train = [spill.collect(cleaner.clean(_stream_texts(source, warn))) for source in sources]
    if cleaner.report.num_seen != cleaner.report.num_kept:
        for line in cleaner.report.lines():
            warn(line)
    if not held_out:
        check_can_hold_out(sources)
        return split_documents(train, config.data.validation_share)
    cleaner = _build_cleaner(config.quality, are_pairs)
    kept = [spill.collect(cleaner.clean(_stream_texts(source, warn))) for source in held_out]
    return Documents([_choose(documents) for documents in train], [_choose(documents) for documents in kept], are_pairs)


def build_spill(config: Config, say: Say) -> Spill:
    return Spill(Path(config.run.out) / config.run.name, say)


def _build_cleaner(config: QualityConfig, are_pairs: bool) -> Cleaner:
    return PairCleaner(config) if are_pairs else DocumentCleaner(config)


def split_documents(sources: Sequence[Iterable[Document]], share: float) -> Documents:
    """Hold out a share by a hash of each document: independent of their order; equal documents stay on one side."""
    hashes = [np.fromiter(map(_hash_text, documents), np.uint64) for documents in sources]
    found = np.concatenate([np.empty(0, np.uint64), *hashes])
    num_different = min(len(found), 1 if (found == found[:1]).all() else 2)
    if num_different < 2:
        raise InputError(
            f"the training text has {num_different} different document(s), too few to hold some out; give"
            " data.validation, or put one document on each line"
        )
    lowest, highest = int(found.min()), int(found.max())
    limit = min(max(int(share * _HASH_RANGE), lowest + 1), highest)
    splits = [(documents, some < np.uint64(limit)) for documents, some in zip(sources, hashes, strict=True)]
    train = [_choose(documents, (~held_out).tobytes()) for documents, held_out in splits]
    validation = [_choose(documents, held_out.tobytes()) for documents, held_out in splits]
    are_pairs = any(isinstance(document, TextPair) for documents in sources for document in islice(documents, 1))
    return Documents(train, validation, are_pairs)


def sort_by_hash(texts: Sequence[str]) -> list[str]:
    """Sort documents by the hash that `split_documents` uses."""
    return sorted(texts, key=_hash_text)


def is_held_out(text: str, share: float) -> bool:
    return _hash_text(text) < share * _HASH_RANGE


def _hash_text(document: Document) -> int:
    text = document if isinstance(document, str) else document.join()
    return int.from_bytes(hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest())


def read_texts(source: SourceConfig, warn: Say) -> list[Document]:
    """The documents of a source, with a warning for everything in it that could not be read."""
    return [*_stream_texts(source, warn)]


def _stream_texts(source: SourceConfig, warn: Say) -> Iterator[Document]:
    report = ReadingReport()
    yield from (read_source if source.second_column is None else read_pairs)(source, report)
    for warning in report.warnings(source.path):
        warn(warning)


_WORD = re.compile(r"\S+\s*")


class SampleKey(NamedTuple):
    """Identifies a sample in an epoch."""

    seed: int
    epoch: int
    sample: int


def augment(text: str, sample_key: SampleKey, config: AugmentationConfig) -> str:
    """`augment_text` as the configuration asks for it."""
    return augment_text(text, sample_key, config.probability, config.word_dropout)


def augment_text(text: str, sample_key: SampleKey, probability: float = 0.3, dropout: float = 0.1) -> str:
    """With a probability, drop some words of the text, each at the rate `dropout`, but never all of them.

    Words are separated by spaces, so text in scripts without spaces is unchanged.
    """
    if not probability or not dropout:
        return text
    key = compute_key(sample_key.seed, sample_key.epoch, Stream.AUGMENTATION)
    sample = torch.tensor(sample_key.sample)
    if int(random_uint32(key, sample, torch.tensor(0))) >= threshold(probability):
        return text
    words = _WORD.findall(text)
    draws = random_uint32(key, sample, torch.arange(1, len(words) + 1))
    kept = draws >= threshold(dropout)
    if bool(kept.all()):
        return text
    if not bool(kept.any()):
        kept[int(draws.argmax())] = True
    return "".join(word for word, is_kept in zip(words, kept.tolist(), strict=True) if is_kept).strip()


Encode = Callable[[Sequence[Iterable[str]]], Shards]


class AugmentedLoader(PackedLoader):
    """Holds texts; each epoch they are augmented, tokenized and packed anew, as a function of (seed, epoch)."""

    def __init__(
        self, texts: Sequence[Iterable[str]], encode: Encode, augmentation: AugmentationConfig, **options: Any
    ) -> None:
        self._texts, self._encode, self._augmentation, self._options = texts, encode, augmentation, options
        super().__init__(self._shards_of(options["seed"], epoch=0), **options)

    @property
    def faster_advice(self) -> str:
        return (
            "every epoch augments and tokenizes all texts anew: switch that off (augmentation.probability=0), or train"
            " on the folder that maskwright prepare makes"
        )

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[PackedBatch]:
        return self.for_epoch(epoch).epoch(epoch, start_batch)

    def for_epoch(self, epoch: int) -> PackedLoader:
        loader = PackedLoader(self._shards_of(self.seed, epoch), **self._options)
        return loader.for_rank(self.rank, self.world_size)

    def _shards_of(self, seed: int, epoch: int) -> Shards:
        numbers = count()

        def augmented(documents: Iterable[str]) -> Iterator[str]:
            for text in documents:
                yield augment(text, SampleKey(seed, epoch, next(numbers)), self._augmentation)

        return self._encode([augmented(documents) for documents in self._texts])  # one source after the other
