"""Rankings of documents to figures of each query: nDCG, recall and reciprocal rank, as trec_eval computes them.

Q queries, K documents found for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from maskwright.evaluation.figures import Measure
from maskwright.evaluation.statistics import Floats

NDCG_AT, RECALL_AT, MRR_AT = 10, (10, 100), 10
DEPTH = max(NDCG_AT, *RECALL_AT, MRR_AT)
"""Documents that are needed of each query."""


@dataclass(frozen=True)
class Found:
    """The documents found for a query, with their scores."""

    documents: Sequence[str]
    scores: Sequence[float]

    def rank(self) -> list[str]:
        """Best first; of equal scores the larger id first, as in trec_eval, so that the order of a file is no help."""
        order = sorted(zip(self.scores, self.documents, strict=True), reverse=True)
        return [document for _, document in order]


def measure_rankings(found: Sequence[Found], grades: Sequence[Mapping[str, int]]) -> list[Measure]:
    """The figures of all queries, each of which some document answers."""
    gains = _collect_gains(found, grades)
    ideal = _list_ideal(grades)
    discounts = 1.0 / np.log2(np.arange(NDCG_AT) + 2.0)
    ndcg = (gains[:, :NDCG_AT] @ discounts) / (ideal[:, :NDCG_AT] @ discounts)
    num_relevant = np.asarray([sum(grade > 0 for grade in one.values()) for one in grades])
    hits = gains > 0
    recalls = [Measure.of_values(f"recall@{k}", hits[:, :k].sum(1) / num_relevant) for k in RECALL_AT]
    first = hits[:, :MRR_AT].argmax(1)
    reciprocal = np.where(hits[:, :MRR_AT].any(1), 1.0 / (first + 1.0), 0.0)
    return [Measure.of_values(f"ndcg@{NDCG_AT}", ndcg), *recalls, Measure.of_values(f"mrr@{MRR_AT}", reciprocal)]


def _collect_gains(found: Sequence[Found], grades: Sequence[Mapping[str, int]]) -> Floats:
    """(Q, K) the grade of the document at each rank; 0 where it is not judged, or judged to be no answer."""
    gains: Floats = np.zeros((len(found), DEPTH))
    for row, (one, judged) in enumerate(zip(found, grades, strict=True)):
        ranked = [max(0, judged.get(document, 0)) for document in one.rank()[:DEPTH]]
        gains[row, : len(ranked)] = ranked
    return gains


def _list_ideal(grades: Sequence[Mapping[str, int]]) -> NDArray[np.float64]:
    """(Q, nDCG's depth) the best grades there are, best first."""
    ideal: Floats = np.zeros((len(grades), NDCG_AT))
    for row, judged in enumerate(grades):
        best = sorted((grade for grade in judged.values() if grade > 0), reverse=True)[:NDCG_AT]
        ideal[row, : len(best)] = best
    return ideal
