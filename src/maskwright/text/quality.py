"""Clean documents and pairs of texts: normalisation, filters and duplicates, each step optional and counted."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from maskwright.sections.data import QualityConfig
from maskwright.text.duplicates import (
    BLANK,
    IDEOGRAPH,
    LETTER,
    NUM_KINDS,
    NUMBER,
    SYMBOL,
    ExactDuplicates,
    NearDuplicates,
    character_kinds,
    code_points,
)

Reject = Callable[[str], str | None]
"""The reason to drop a document, or None to keep it."""

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufeff]")
_JUDGED_CHARS = 1_000_000


@dataclass
class QualityReport:
    """Counts of kept and dropped documents; prints as a few short lines."""

    num_seen: int = 0
    num_kept: int = 0
    num_changed: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """How many documents were dropped, by reason."""

    def lines(self) -> list[str]:
        share = self.num_kept / self.num_seen if self.num_seen else 0.0
        lines = [f"{self.num_seen:,} documents, {self.num_kept:,} kept ({share:.1%})"]
        if self.num_changed:
            lines.append(f"  {self.num_changed:,} cleaned (Unicode form or control characters)")
        for reason, count in self.dropped.most_common():
            lines.append(f"  {count:,} dropped: {reason}")
        return lines

    def __str__(self) -> str:
        return "\n".join(self.lines())


class DocumentCleaner:
    """The steps of a configuration; a duplicate is found whichever of the cleaned streams the first was in."""

    def __init__(self, config: QualityConfig, report: QualityReport | None = None) -> None:
        self.report = report if report is not None else QualityReport()
        self._clean = _build_cleaner(config)
        self._rejections = _build_rejections(config)

    def clean(self, documents: Iterable[str]) -> Iterator[str]:
        """The documents worth keeping, in order; only looking for duplicates needs memory that grows."""
        report = self.report
        for document in documents:
            report.num_seen += 1
            text = self._clean(document)
            report.num_changed += text != document
            reason = next((reason for reject in self._rejections if (reason := reject(text))), None)
            if reason is None:
                report.num_kept += 1
                yield text
            else:
                report.dropped[reason] += 1


def clean_documents(
    documents: Iterable[str], config: QualityConfig, report: QualityReport | None = None
) -> Iterator[str]:
    """The documents of one stream that are worth keeping; for several streams, share a `DocumentCleaner`."""
    return DocumentCleaner(config, report).clean(documents)


def _build_cleaner(config: QualityConfig) -> Callable[[str], str]:
    form = config.unicode
    remove_control = config.remove_control

    def clean(text: str) -> str:
        if remove_control:
            text = _CONTROL.sub(lambda found: " " if found[0].isspace() else "", text).strip()
        if form == "nfc":
            text = unicodedata.normalize("NFC", text)
        elif form == "nfkc":
            text = unicodedata.normalize("NFKC", text).strip()
        return text

    return clean


def _build_rejections(config: QualityConfig) -> list[Reject]:
    """The configured filters, cheap ones first; duplicates are searched only among what passed the others."""
    rejections: list[Reject] = [lambda text: None if text else "nothing left"]
    if config.min_chars is not None or config.max_chars is not None:
        rejections.append(_between("characters", len, config.min_chars, config.max_chars))
    if config.min_words is not None or config.max_words is not None:
        rejections.append(_between("words", lambda text: len(text.split()), config.min_words, config.max_words))
    if (config.min_letter_share, config.max_symbol_share, config.max_repeat_share) != (None, None, None):
        rejections.append(_build_character_test(config))
    if config.drop_duplicates:
        exact = ExactDuplicates()
        rejections.append(lambda text: None if exact.is_new(text) else "duplicate")
    if config.drop_near_duplicates:
        near = NearDuplicates(config.near_duplicate_similarity)
        rejections.append(lambda text: None if near.is_new(text) else "near duplicate")
    return rejections


def _between(unit: str, measure: Callable[[str], int], least: int | None, most: int | None) -> Reject:
    def reject(text: str) -> str | None:
        size = measure(text)
        if least is not None and size < least:
            return f"under {least:,} {unit}"
        if most is not None and size > most:
            return f"over {most:,} {unit}"
        return None

    return reject


def _build_character_test(config: QualityConfig) -> Reject:
    min_letters = config.min_letter_share
    max_symbols = config.max_symbol_share
    max_repeat = config.max_repeat_share

    def reject(text: str) -> str | None:
        shares = compute_character_shares(text)
        if min_letters is not None and shares.letters < min_letters:
            return f"under {min_letters:.0%} letters"
        if max_symbols is not None and shares.symbols > max_symbols:
            return f"over {max_symbols:.0%} digits and symbols"
        if max_repeat is not None and shares.most_frequent > max_repeat:
            return f"over {max_repeat:.0%} one character"
        return None

    return reject


@dataclass(frozen=True)
class CharacterShares:
    """Shares of a text's characters, blanks not counted."""

    letters: float
    """Unicode categories L and M: the vowel signs of many scripts are marks."""
    symbols: float
    """Unicode categories N and S; punctuation is neither letter nor symbol."""
    most_frequent: float


def compute_character_shares(text: str) -> CharacterShares:
    """Character shares of a text, from its first million characters."""
    codes = code_points(text[:_JUDGED_CHARS])
    kinds = character_kinds(codes)
    codes = codes[kinds != BLANK]
    if not codes.size:
        return CharacterShares(0.0, 0.0, 0.0)
    shares = np.bincount(kinds, minlength=NUM_KINDS) / codes.size
    return CharacterShares(
        letters=float(shares[LETTER] + shares[IDEOGRAPH]),
        symbols=float(shares[NUMBER] + shares[SYMBOL]),
        most_frequent=int(np.bincount(codes).max()) / codes.size,
    )


class TextPair(NamedTuple):
    first: str
    second: str

    def join(self) -> str:
        """Both texts as one, with a separator, for hashes."""
        return f"{self.first} \0 {self.second}"


Document = str | TextPair


def list_texts(documents: Iterable[Document]) -> list[str]:
    """A flat list of texts, with those of pairs in alternation."""
    return [text for document in documents for text in ((document,) if isinstance(document, str) else document)]


class PairCleaner:
    """The steps of a configuration on both texts: a pair is dropped when either is. Duplicates are equal pairs."""

    def __init__(self, config: QualityConfig) -> None:
        self._text_cleaner = DocumentCleaner(config.without_duplicates())
        self._pair_cleaner = DocumentCleaner(
            QualityConfig(
                drop_duplicates=config.drop_duplicates,
                drop_near_duplicates=config.drop_near_duplicates,
                near_duplicate_similarity=config.near_duplicate_similarity,
            )
        )
        self._num_seen = self._num_changed = 0

    @property
    def report(self) -> QualityReport:
        """Counts of pairs; each dropped pair has one reason, the first that was found."""
        texts, pairs = self._text_cleaner.report, self._pair_cleaner.report
        return QualityReport(self._num_seen, pairs.num_kept, self._num_changed, texts.dropped + pairs.dropped)

    def clean(self, pairs: Iterable[TextPair]) -> Iterator[TextPair]:
        """The pairs worth keeping, in order."""
        for pair in pairs:
            self._num_seen += 1
            first = self._clean_text(pair.first)
            second = None if first is None else self._clean_text(pair.second)
            if first is None or second is None:
                continue
            cleaned = TextPair(first, second)
            self._num_changed += cleaned != pair
            if any(self._pair_cleaner.clean([cleaned.join()])):
                yield cleaned

    def _clean_text(self, text: str) -> str | None:
        return next(self._text_cleaner.clean([text]), None)
