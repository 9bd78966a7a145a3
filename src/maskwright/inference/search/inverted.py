"""Sparse vectors of documents as an inverted index: for each token the documents that have it, with its weights.

Parts hold what is theirs, so that an index can be mapped into memory and grow. U tokens that occur in a part, E weights
above 0, Q queries, N documents.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from maskwright.errors import InputError
from maskwright.inference.search.nearest import Floats, Nearest, merge_best
from maskwright.inference.search.quantized import Array
from maskwright.inference.sparse import SparseVector

TOKENS, STARTS, DOCUMENTS, WEIGHTS = "tokens", "starts", "documents", "weights"
"""(U,) ascending, (U + 1,) where the documents of each begin, (E,) documents, (E,) weights."""
_QUERIES_AT_ONCE = 256


def check_scipy() -> None:
    if importlib.util.find_spec("scipy") is None:
        raise InputError("sparse retrievers need scipy; pip install 'maskwright[retrieval]'")


def store_sparse(vectors: Sequence[SparseVector]) -> dict[str, Array]:
    """The arrays that are kept of vectors."""
    tokens = np.concatenate([one.tokens for one in vectors])
    documents = np.repeat(np.arange(len(vectors), dtype=np.int32), [len(one.tokens) for one in vectors])
    order = np.argsort(tokens, kind="stable")
    known, counts = np.unique(tokens, return_counts=True)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    weights = np.concatenate([one.weights for one in vectors])
    return {TOKENS: known, STARTS: starts, DOCUMENTS: documents[order], WEIGHTS: weights[order]}


def is_whole(arrays: Mapping[str, Array], num_documents: int) -> bool:
    """Whether the arrays of a part fit each other, so that searching them stays within."""
    if set(arrays) != {TOKENS, STARTS, DOCUMENTS, WEIGHTS}:
        return False
    starts, documents = arrays[STARTS].astype(np.int64), arrays[DOCUMENTS]
    return bool(
        starts.shape == (len(arrays[TOKENS]) + 1,)
        and starts[0] == 0
        and (np.diff(starts) >= 0).all()
        and starts[-1] == len(documents) == len(arrays[WEIGHTS])
        and (not len(documents) or (documents.min() >= 0 and documents.max() < num_documents))
    )


def score_sparse(queries: Sequence[SparseVector], arrays: Mapping[str, Array], num_documents: int) -> Floats:
    """(Q, N) products of queries with the documents of a part."""
    from scipy.sparse import csr_array

    known = arrays[TOKENS]
    rows, columns, values = [], [], []
    for number, query in enumerate(queries):
        places = np.searchsorted(known, query.tokens)
        is_known = places < len(known)
        is_known[is_known] = known[places[is_known]] == query.tokens[is_known]
        columns.append(places[is_known])
        values.append(query.weights[is_known])
        rows.append(np.full(int(is_known.sum()), number))
    asked = csr_array(
        (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))), shape=(len(queries), len(known))
    )
    index = csr_array((arrays[WEIGHTS], arrays[DOCUMENTS], arrays[STARTS]), shape=(len(known), num_documents))
    scores: Floats = (asked @ index).toarray()
    return scores


def find_sparse(
    queries: Sequence[SparseVector], parts: Sequence[tuple[Mapping[str, Array], int]], num_best: int
) -> Nearest:
    """The best of parts, given with their numbers of documents; exact. Without a common token the score is 0."""

    def score(asked: Sequence[SparseVector]) -> Iterator[tuple[int, Floats]]:
        first = 0
        for arrays, num_documents in parts:
            yield first, score_sparse(asked, arrays, num_documents)
            first += num_documents

    found = [
        merge_best(score(asked), len(asked), num_best)
        for asked in (queries[start : start + _QUERIES_AT_ONCE] for start in range(0, len(queries), _QUERIES_AT_ONCE))
    ]
    return Nearest(np.concatenate([one.places for one in found]), np.concatenate([one.scores for one in found]))
