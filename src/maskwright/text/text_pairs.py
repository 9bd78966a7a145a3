"""Pairs of texts, such as premise and hypothesis, and their cleaning."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from maskwright.sections.data import QualityConfig
from maskwright.text.quality import DocumentCleaner, QualityReport


class TextPair(NamedTuple):
    first: str
    second: str

    def join(self) -> str:
        """One text that tells where the second begins, for hashes."""
        return f"{self.first} \0 {self.second}"


Document = str | TextPair


def list_texts(documents: Iterable[Document]) -> list[str]:
    """The texts one after another, those of pairs by turns."""
    return [text for document in documents for text in ((document,) if isinstance(document, str) else document)]


class PairCleaner:
    """The steps of a configuration on both texts: a pair is dropped when either is. Duplicates are equal pairs."""

    def __init__(self, config: QualityConfig) -> None:
        self._text_cleaner = DocumentCleaner(
            config.model_copy(update={"drop_duplicates": False, "drop_near_duplicates": False})
        )
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
        """Counts of pairs; each that is dropped has one reason, the first that was found."""
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
