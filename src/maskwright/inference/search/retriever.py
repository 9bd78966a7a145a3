"""Retrievers of every kind behind one face: texts to what an index keeps of them, and queries to the best documents."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from maskwright.errors import InputError
from maskwright.inference.loading import find_kind
from maskwright.inference.pipeline import Pipeline, pipeline
from maskwright.inference.precision import Compile
from maskwright.inference.search.inverted import check_scipy, find_sparse, is_whole, score_sparse, store_sparse
from maskwright.inference.search.late_store import find_tokens, holds_tokens, score_tokens, store_tokens
from maskwright.inference.search.nearest import Floats, Nearest, score_floats
from maskwright.inference.search.quantized import (
    BINARY,
    BITS,
    FLOAT,
    INT8,
    VECTORS,
    Array,
    find_stored,
    score_bytes,
    store_vectors,
)
from maskwright.inference.sparse import SparseVector
from maskwright.models.files.model_folder import resolve_folder
from maskwright.tasks.heads import TEXT_ROLES
from maskwright.tasks.retrieval.settings import COLBERT, DENSE, SPLADE, Kind

Arrays = Mapping[str, Array]
SCORE_NAMES: Mapping[Kind, str] = {
    DENSE: "cosines of vectors",
    SPLADE: "products of sparse vectors",
    COLBERT: "best matches of tokens",
}
"""What a report calls the scores of a kind."""


class Retriever(ABC):
    """A model that texts are compared with."""

    kind: ClassVar[Kind]
    documents: Pipeline[str, Any]
    queries: Pipeline[str, Any]

    def __init__(self, embed: Pipeline[str, Any], **options: Any) -> None:
        query, document = ({**options, "role": role} for role in TEXT_ROLES)
        self.query_options = query
        """Of `embed`, with which it gives the vectors of queries."""
        self.queries, self.documents = embed.with_options(query), embed.with_options(document)

    def embed_queries(self, texts: Sequence[str]) -> Any:
        """As `find` takes them."""
        return self.gather(self.queries(list(texts)))

    def gather(self, vectors: Sequence[Any]) -> Any:
        """What `queries` gave to some texts, as `find` takes them."""
        return vectors

    @abstractmethod
    def store(self, vectors: Sequence[Any]) -> dict[str, Array]:
        """The arrays that are kept of what `documents` gave to each text."""

    @abstractmethod
    def is_whole(self, arrays: Arrays, num_documents: int) -> bool:
        """Whether arrays that were read are such as `store` gives for so many documents."""

    @abstractmethod
    def find(self, queries: Any, parts: Sequence[tuple[Arrays, int]], num_best: int) -> Nearest:
        """The best of parts, given with their numbers of documents."""

    @abstractmethod
    def score_all(self, queries: Any, arrays: Arrays, num_documents: int) -> Floats:
        """(Q, N) scores of queries with all documents of a part."""

    def store_texts(self, texts: Sequence[str]) -> tuple[Arrays, int]:
        """A part of texts, each of which has tokens."""
        return self.store(self.documents(list(texts))), len(texts)


class DenseRetriever(Retriever):
    """Cosines of vectors."""

    kind = "dense"

    def __init__(self, embed: Pipeline[str, Floats], name: str, store: str = FLOAT, dims: int | None = None) -> None:
        super().__init__(embed, normalize=True)
        self._store, self._dims = store, dims
        if dims is not None:
            width = len(self.documents("a"))
            if dims > width:
                raise InputError(f"--dims is {dims}, vectors of {name} have {width} numbers; lower it")

    def gather(self, vectors: Sequence[Floats]) -> Floats:
        stacked = np.stack(vectors).astype(np.float32)
        return stacked if self._dims is None else _shorten(stacked, self._dims)

    def store(self, vectors: Sequence[Floats]) -> dict[str, Array]:
        return store_vectors(self.gather(vectors), self._store)

    def is_whole(self, arrays: Arrays, num_documents: int) -> bool:
        names = {VECTORS} | ({BITS} if self._store == BINARY else set())
        return set(arrays) == names and all(one.ndim == 2 and len(one) == num_documents for one in arrays.values())

    def find(self, queries: Floats, parts: Sequence[tuple[Arrays, int]], num_best: int) -> Nearest:
        return find_stored(queries, [arrays for arrays, _ in parts], self._store, num_best)

    def score_all(self, queries: Floats, arrays: Arrays, num_documents: int) -> Floats:
        return (score_floats if self._store == FLOAT else score_bytes)(queries, arrays[VECTORS])


def _shorten(vectors: NDArray[np.float32], dims: int) -> NDArray[np.float32]:
    """Prefixes of length 1."""
    prefixes = vectors[:, :dims]
    return prefixes / np.maximum(np.linalg.norm(prefixes, axis=1, keepdims=True), np.float32(1e-12))


class SparseRetriever(Retriever):
    """Products of weights of tokens."""

    kind = "splade"

    def store(self, vectors: Sequence[SparseVector]) -> dict[str, Array]:
        return store_sparse(vectors)

    def is_whole(self, arrays: Arrays, num_documents: int) -> bool:
        return is_whole(arrays, num_documents)

    def find(self, queries: Sequence[SparseVector], parts: Sequence[tuple[Arrays, int]], num_best: int) -> Nearest:
        return find_sparse(queries, parts, num_best)

    def score_all(self, queries: Sequence[SparseVector], arrays: Arrays, num_documents: int) -> Floats:
        return score_sparse(queries, arrays, num_documents)


class LateRetriever(Retriever):
    """Sums over a query's tokens of their best matches in a document."""

    kind = "colbert"

    def __init__(self, embed: Pipeline[str, Floats], store: str = FLOAT) -> None:
        super().__init__(embed)
        self._store = store

    def store(self, vectors: Sequence[Floats]) -> dict[str, Array]:
        return store_tokens(vectors, self._store)

    def is_whole(self, arrays: Arrays, num_documents: int) -> bool:
        return holds_tokens(arrays, num_documents)

    def find(self, queries: Sequence[Floats], parts: Sequence[tuple[Arrays, int]], num_best: int) -> Nearest:
        return find_tokens(queries, [arrays for arrays, _ in parts], num_best)

    def score_all(self, queries: Sequence[Floats], arrays: Arrays, num_documents: int) -> Floats:
        return score_tokens(queries, arrays)


def check_options(kind: Kind, store: str, dims: int | None) -> None:
    """Before anything is loaded or written."""
    if kind == SPLADE:
        check_scipy()
    if kind == SPLADE and (store != FLOAT or dims is not None):
        raise InputError("--store and --dims are for vectors, and a sparse retriever has none; leave them out")
    if kind == COLBERT and dims is not None:
        raise InputError("--dims is for one vector of a text, and this retriever has one of each token; leave it out")
    if kind == COLBERT and store == BINARY:
        raise InputError(f"--store {BINARY} is for one vector of a text; use {FLOAT} or {INT8}")


def open_retriever(
    name: str,
    *,
    store: str = FLOAT,
    dims: int | None = None,
    pooling: str | None = None,
    precision: str | None = None,
    compile: Compile | None = None,
) -> Retriever:
    """The retriever of a run, a model folder or a hub id; `store`, `dims` and `pooling` are for vectors."""
    kind = find_kind(resolve_folder(name))
    check_options(kind, store, dims)
    if kind != DENSE and pooling is not None:
        raise InputError(f"--pooling is for one vector of a text, which {name} has not; leave it out")
    given: dict[str, Any] = {} if pooling is None else {"pooling": pooling}
    embed = pipeline("embed", name, precision=precision, compile=compile, **given)
    return build_retriever(kind, embed, name, store=store, dims=dims)


def build_retriever(
    kind: Kind, embed: Pipeline[str, Any], name: str, *, store: str = FLOAT, dims: int | None = None
) -> Retriever:
    """Around the pipeline `embed` of a model of this kind that is loaded already."""
    if kind == SPLADE:
        return SparseRetriever(embed)
    return LateRetriever(embed, store) if kind == COLBERT else DenseRetriever(embed, name, store, dims)
