"""The texts of a run: read from its sources, cleaned, and some of them held out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

from maskwright.config import Config
from maskwright.errors import InputError
from maskwright.sections.data import SourceConfig, build_sources
from maskwright.text.corpus import ReadingReport
from maskwright.text.quality import DocumentCleaner
from maskwright.text.sources import read_source

Say = Callable[[str], None]
_HASH_RANGE = 1 << 64


@dataclass(frozen=True)
class Documents:
    train: list[list[str]]
    """Those of each source."""
    validation: list[str]


def read_documents(config: Config, warn: Say) -> Documents:
    """The training and held-out texts."""
    cleaner = DocumentCleaner(config.quality)
    train = [list(cleaner.clean(read_texts(source, warn))) for source in build_sources(config.data.train)]
    if cleaner.report.num_seen != cleaner.report.num_kept:
        for line in cleaner.report.lines():
            warn(line)
    if config.data.validation is None:
        return split_documents(train, config.data.validation_share)
    validation = (read_texts(source, warn) for source in build_sources(config.data.validation))
    return Documents(train, list(DocumentCleaner(config.quality).clean(chain.from_iterable(validation))))


def split_documents(sources: list[list[str]], share: float) -> Documents:
    """Hold out a share by a hash of each text: the same texts whatever their order, and no text on both sides."""
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
    return Documents(train, validation)


def is_held_out(text: str, share: float) -> bool:
    return _hash_text(text) < share * _HASH_RANGE


def _hash_text(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest())


def read_texts(source: SourceConfig, warn: Say) -> list[str]:
    """The documents of a source, with a warning for everything in it that could not be read."""
    report = ReadingReport()
    documents = list(read_source(source, report))
    for warning in report.warnings(source.path):
        warn(warning)
    return documents
