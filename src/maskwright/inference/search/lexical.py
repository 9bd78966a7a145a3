"""BM25 over the words of texts, by bm25s: what every retriever is compared with."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from maskwright.errors import InputError
from maskwright.inference.search.nearest import Floats, Nearest

BM25: Final = "bm25"
"""What commands call it where a model may be named."""


def check_bm25() -> None:
    if importlib.util.find_spec("bm25s") is None:
        raise InputError("bm25 needs bm25s; pip install 'maskwright[retrieval]'")


class LexicalIndex:
    """Lucene's BM25 (k1 1.5, b 0.75) of lower-cased words of two letters or more, without English stop words."""

    def __init__(self, scorer: Any) -> None:
        self._scorer = scorer

    @classmethod
    def build(cls, texts: Sequence[str]) -> LexicalIndex:
        check_bm25()
        import bm25s

        scorer = bm25s.BM25()
        words = bm25s.tokenize(list(texts), show_progress=False)
        if not words.vocab:
            raise InputError(
                "the documents hold no word that BM25 counts; give texts with words of two letters or more"
            )
        scorer.index(words, show_progress=False)
        return cls(scorer)

    def save(self, folder: Path) -> None:
        self._scorer.save(str(folder), show_progress=False)

    @classmethod
    def load(cls, folder: Path) -> LexicalIndex:
        check_bm25()
        import bm25s

        return cls(bm25s.BM25.load(str(folder), mmap=True, show_progress=False))

    @property
    def num_documents(self) -> int:
        return int(self._scorer.scores["num_docs"])

    def score_all(self, query: str) -> Floats:
        """(documents,) the score of each; 0 without a word of the query."""
        import bm25s

        (words,) = bm25s.tokenize([query], return_ids=False, show_progress=False)
        known = [word for word in words if word in self._scorer.vocab_dict]
        if not known:
            return np.zeros(self.num_documents, np.float32)
        return np.asarray(self._scorer.get_scores(known), np.float32)

    def find(self, queries: Sequence[str], num_best: int) -> Nearest:
        """A document without a word of the query has the score 0."""
        import bm25s

        words = bm25s.tokenize(list(queries), return_ids=False, show_progress=False)
        num_best = min(num_best, self.num_documents)
        places, scores = self._scorer.retrieve(words, k=num_best, show_progress=False)
        return Nearest(np.asarray(places, np.int64), np.asarray(scores, np.float32))
