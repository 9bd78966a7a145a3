"""The texts of a run: read from its sources, cleaned, and some of them held out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

from maskwright.config import Config
from maskwright.errors import InputError
from maskwright.sections.data import QualityConfig, SourceConfig, build_sources, check_can_hold_out, hold_pairs
from maskwright.text.corpus import ReadingReport
from maskwright.text.quality import DocumentCleaner, QualityReport
from maskwright.text.sources import read_pairs, read_source
from maskwright.text.text_pairs import Document, PairCleaner, TextPair, list_texts

Say = Callable[[str], None]
_HASH_RANGE = 1 << 64


@dataclass(frozen=True)
class Documents:
    train: list[list[str]]
    """Those of each source; of pairs, the first and the second text by turns."""
    validation: list[str]
    are_pairs: bool = False


class Cleaner(Protocol):
    """Keeps documents of one kind, texts or pairs of them."""

    @property
    def report(self) -> QualityReport: ...

    def clean(self, documents: Iterable[Any], /) -> Iterator[Any]: ...


def read_documents(config: Config, warn: Say) -> Documents:
    """The training and held-out texts."""
    sources = build_sources(config.data.train)
    held_out = [] if config.data.validation is None else build_sources(config.data.validation)
    are_pairs = hold_pairs([*sources, *held_out])
    if are_pairs and config.pairs.task is not None:
        raise InputError(
            f"pairs.task={config.pairs.task} makes pairs and asks about them, data.train gives pairs (second_column);"
            " unset one of the two"
        )
    cleaner = _build_cleaner(config.quality, are_pairs)
    train = [list(cleaner.clean(read_texts(source, warn))) for source in sources]
    if cleaner.report.num_seen != cleaner.report.num_kept:
        for line in cleaner.report.lines():
            warn(line)
    if not held_out:
        check_can_hold_out(sources)
        return split_documents(train, config.data.validation_share)
    validation = chain.from_iterable(read_texts(source, warn) for source in held_out)
    return _collect(train, list(_build_cleaner(config.quality, are_pairs).clean(validation)))


def _build_cleaner(config: QualityConfig, are_pairs: bool) -> Cleaner:
    return PairCleaner(config) if are_pairs else DocumentCleaner(config)


def split_documents(sources: Sequence[Sequence[Document]], share: float) -> Documents:
    """Hold out a share by a hash of each document: the same whatever their order, and none on both sides."""
    hashes = {text: _hash_text(text) for documents in sources for text in documents}
    if len(hashes) < 2:
        raise InputError(
            f"the training text has {len(hashes)} different document(s), too few to hold some out; give"
            " data.validation, or put one document on each line"
        )
    lowest, highest = min(hashes.values()), max(hashes.values())
    limit = min(max(int(share * _HASH_RANGE), lowest + 1), highest)
    train = [[text for text in documents if hashes[text] >= limit] for documents in sources]
    validation = [text for documents in sources for text in documents if hashes[text] < limit]
    return _collect(train, validation)


def _collect(train: Sequence[Sequence[Document]], validation: Sequence[Document]) -> Documents:
    are_pairs = any(isinstance(document, TextPair) for documents in (*train, validation) for document in documents)
    return Documents([list_texts(documents) for documents in train], list_texts(validation), are_pairs)


def sort_by_hash(texts: Sequence[str]) -> list[str]:
    """In the order in which `split_documents` would hold them out, whatever theirs was."""
    return sorted(texts, key=_hash_text)


def is_held_out(text: str, share: float) -> bool:
    return _hash_text(text) < share * _HASH_RANGE


def _hash_text(document: Document) -> int:
    text = document if isinstance(document, str) else document.join()
    return int.from_bytes(hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest())


def read_texts(source: SourceConfig, warn: Say) -> list[Document]:
    """The documents of a source, with a warning for everything in it that could not be read."""
    report = ReadingReport()
    read = read_source if source.second_column is None else read_pairs
    documents: list[Document] = [*read(source, report)]
    for warning in report.warnings(source.path):
        warn(warning)
    return documents
