"""`maskwright search` and `maskwright.search`: the documents of an index that answer a query best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from maskwright.errors import InputError
from maskwright.inference.search.index_folder import LEXICAL, OpenIndex, Part
from maskwright.inference.search.lexical import BM25, LexicalIndex
from maskwright.inference.search.nearest import Nearest
from maskwright.inference.search.rerank import Reranker
from maskwright.inference.search.retriever import Retriever, open_retriever
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

    def __init__(self, index: str | Path, model: str | Path | None = None) -> None:
        """`model` is where the index's model lies now, if it was moved."""
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
        self._retriever = open_retriever(name, store=manifest.store, dims=manifest.dims)
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
        parts = [(part.arrays, part.num_documents) for part in self.index.parts]
        return self._retriever.find(self._retriever.embed_queries(queries), parts, top_k)

    def search(
        self, queries: Sequence[str], top_k: int = TOP_K, reranker: Reranker | None = None, depth: int = RERANK_DEPTH
    ) -> list[list[Hit]]:
        """The best documents of each query, best first; of the first `depth` in the order of a reranker, if given."""
        for number, query in enumerate(queries, start=1):
            if not query.strip():
                raise InputError(f"query {number:,} is empty; write what is looked for")
        nearest = self.find(queries, top_k if reranker is None else max(top_k, depth))
        found = []
        for places, scores in zip(nearest.places.tolist(), nearest.scores.tolist(), strict=True):
            documents = [self.index.read_document(place) for place in places]
            hits = [Hit(one.id, score, one.text) for one, score in zip(documents, scores, strict=True)]
            found.append(hits)
        return found if reranker is None else _rerank(queries, found, reranker, top_k)


def _rerank(queries: Sequence[str], found: list[list[Hit]], reranker: Reranker, top_k: int) -> list[list[Hit]]:
    """With the reranker's scores."""
    scores = reranker.score(queries, [[hit.text for hit in hits] for hits in found])
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
