"""Retrievers of every kind behind one face: texts to what an index keeps of them, and queries to the best documents."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from maskwright.errors import InputError
from maskwright.inference.late import open_late
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
from maskwright.inference.sparse import SparseVector, open_sparse
from maskwright.models.files.model_folder import read_config, resolve_folder
from maskwright.tasks.retrieval.settings import COLBERT, DENSE, SPLADE, load_settings

Kind = Literal["dense", "splade", "colbert"]
Arrays = Mapping[str, Array]
SCORE_NAMES: Mapping[Kind, str] = {
    DENSE: "cosines of vectors",
    SPLADE: "products of sparse vectors",
    COLBERT: "best matches of tokens",
}
"""What a report calls the scores of a kind."""


def find_kind(folder: Path) -> Kind:
    """What a model folder's texts become; whatever was not trained to be another kind gives vectors."""
    return load_settings(read_config(folder)).kind


class Retriever(ABC):
    """A model that texts are compared with."""

    kind: ClassVar[Kind]
    documents: Pipeline[str, Any]
    queries: Pipeline[str, Any]

    def embed_queries(self, texts: Sequence[str]) -> Any:
        """As `find` takes them."""
        return self.queries(list(texts))

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
        self.documents, self.queries = (embed.with_options({"role": role}) for role in ("document", "query"))
        self._store, self._dims = store, dims
        if dims is not None:
            width = len(self.documents("a"))
            if dims > width:
                raise InputError(f"--dims is {dims}, vectors of {name} have {width} numbers; lower it")

    def embed_queries(self, texts: Sequence[str]) -> Floats:
        return self._stack(super().embed_queries(texts))

    def _stack(self, vectors: Sequence[Floats]) -> Floats:
        stacked = np.stack(vectors).astype(np.float32)
        return stacked if self._dims is None else _shorten(stacked, self._dims)

    def store(self, vectors: Sequence[Floats]) -> dict[str, Array]:
        return store_vectors(self._stack(vectors), self._store)

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

    def __init__(self, model: str, precision: str | None, compile: Compile | None) -> None:
        opened = open_sparse(model, precision, compile)
        self.documents, self.queries = opened["document"], opened["query"]

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

    def __init__(self, model: str, store: str, precision: str | None, compile: Compile | None) -> None:
        opened = open_late(model, precision, compile)
        self.documents, self.queries = opened["document"], opened["query"]
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
    if kind == DENSE:
        given: dict[str, Any] = {} if pooling is None else {"pooling": pooling}
        embed = pipeline("embed", name, normalize=True, precision=precision, compile=compile, **given)
        return DenseRetriever(embed, name, store, dims)
    if pooling is not None:
        raise InputError(f"--pooling is for one vector of a text, which {name} has not; leave it out")
    if kind == SPLADE:
        return SparseRetriever(name, precision, compile)
    return LateRetriever(name, store, precision, compile)
