"""`maskwright search` and `maskwright.search`: the documents of an index that answer a query best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from maskwright.errors import InputError
from maskwright.inference.loading import find_kind
from maskwright.inference.pipeline import Pipeline, pipeline
from maskwright.inference.search.index_folder import LEXICAL, OpenIndex, Part
from maskwright.inference.search.lexical import BM25, LexicalIndex
from maskwright.inference.search.nearest import Nearest
from maskwright.inference.search.rerank import Reranker
from maskwright.inference.search.retriever import Retriever, build_retriever
from maskwright.models.files.model_folder import resolve_folder
from maskwright.runs.search.index import describe_model
from maskwright.suggestions import checks_arguments, name_option, refuse_below

TOP_K, RERANK_DEPTH = 10, 100


@dataclass(frozen=True)
class Hit:
    """A document that was found."""

    id: str
    score: float
    """The cosine with the query, the product of sparse vectors, the sum of best matches, or BM25's score."""
    text: str


class Searcher:
    """An index with its model, opened once for many queries."""

    def __init__(
        self, index: str | Path, model: str | Path | None = None, embed: Pipeline[str, Any] | None = None
    ) -> None:
        """`model` is where the index's model lies now, if it was moved; `embed` its pipeline, if that is loaded."""
        self.index = OpenIndex.open(Path(index))
        manifest = self.index.manifest
        self._lexical: LexicalIndex | None = None
        self._retriever: Retriever | None = None
        if manifest.kind == BM25:
            if model is not None and str(model) != BM25:
                raise InputError(f"{index} is an index of {BM25}, which has no model; leave {name_option('model')} out")
            self._lexical = LexicalIndex.load(self.index.folder / LEXICAL)
            return
        name = manifest.model if model is None else str(model)
        if describe_model(name, manifest.store, manifest.dims).fingerprint != manifest.fingerprint:
            raise InputError(
                f"{index} was made with {manifest.model}, and {name} is another model now; index the documents again,"
                f" or name the model it was made with as {name_option('model')}"
            )
        embed = pipeline("embed", name) if embed is None else embed
        self._retriever = build_retriever(
            find_kind(resolve_folder(name)), embed, name, store=manifest.store, dims=manifest.dims
        )
        damaged = next((one for one in self.index.parts if not self._is_whole(self._retriever, one)), None)
        if damaged is not None:
            raise InputError(f"{damaged.folder} is damaged: its arrays are not of its documents; index again")

    @staticmethod
    def _is_whole(retriever: Retriever, part: Part) -> bool:
        return retriever.is_whole(part.arrays, part.num_documents)

    def find(self, queries: Sequence[str], top_k: int = TOP_K) -> Nearest:
        """Numbers of documents, and scores."""
        if self._lexical is not None:
            return self._lexical.find(queries, top_k)
        assert self._retriever is not None
        return self._find_vectors(self._retriever.embed_queries(queries), top_k)

    def _find_vectors(self, queries: Any, top_k: int) -> Nearest:
        assert self._retriever is not None
        parts = [(part.arrays, part.num_documents) for part in self.index.parts]
        return self._retriever.find(queries, parts, top_k)

    @property
    def query_options(self) -> dict[str, Any] | None:
        """Of the pipeline `embed`, for vectors of queries; None where queries are looked up by their words."""
        return None if self._retriever is None else self._retriever.query_options

    def search_vectors(self, vectors: Sequence[Any], top_k: int = TOP_K) -> list[list[Hit]]:
        """As `search`, of queries that `embed` gave these vectors, with `query_options`."""
        assert self._retriever is not None
        return self._list_hits(self._find_vectors(self._retriever.gather(vectors), top_k)) if vectors else []

    def search(
        self, queries: Sequence[str], top_k: int = TOP_K, reranker: Reranker | None = None, depth: int = RERANK_DEPTH
    ) -> list[list[Hit]]:
        """The best documents of each query, best first; of the first `depth` in the order of a reranker, if given."""
        check_queries(queries)
        found = self._list_hits(self.find(queries, top_k if reranker is None else max(top_k, depth)))
        if reranker is None:
            return found
        return reorder(found, reranker.score(queries, [[hit.text for hit in hits] for hits in found]), top_k)

    def _list_hits(self, nearest: Nearest) -> list[list[Hit]]:
        found = []
        for places, scores in zip(nearest.places.tolist(), nearest.scores.tolist(), strict=True):
            documents = [self.index.read_document(place) for place in places]
            hits = [Hit(one.id, score, one.text) for one, score in zip(documents, scores, strict=True)]
            found.append(hits)
        return found


def check_queries(queries: Sequence[str]) -> None:
    for number, query in enumerate(queries, start=1):
        if not query.strip():
            raise InputError(f"query {number:,} is empty; write what is looked for")


def reorder(found: Sequence[Sequence[Hit]], scores: Sequence[Sequence[float]], top_k: int) -> list[list[Hit]]:
    """By a reranker's scores, which take the place of the others."""
    rescored = [
        [replace(hit, score=score) for hit, score in zip(hits, own, strict=True)]
        for hits, own in zip(found, scores, strict=True)
    ]
    return [sorted(hits, key=lambda hit: -hit.score)[:top_k] for hits in rescored]


@checks_arguments
def search(
    index: str | Path,
    queries: str | Sequence[str],
    *,
    top_k: int = TOP_K,
    model: str | Path | None = None,
    rerank: str | Path | None = None,
    rerank_depth: int = RERANK_DEPTH,
) -> list[list[Hit]]:
    """The `top_k` best documents of each query; a single text is one query.

    `model` names the model of the index, if it lies elsewhere now. A model that was fine-tuned to `rerank` puts the
    first `rerank_depth` documents in another order. `Searcher` keeps the index open for further queries.
    """
    refuse_below(1, top_k=top_k, rerank_depth=rerank_depth)
    asked = [queries] if isinstance(queries, str) else list(queries)
    if not asked:
        return []
    reranker = None if rerank is None else Reranker(str(rerank))
    return Searcher(index, model).search(asked, top_k, reranker, rerank_depth)
