"""`retrieval`: are the documents that answer a query found before all others?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from maskwright.errors import InputError
from maskwright.evaluation.ranking import DEPTH, Found, measure_rankings
from maskwright.inference.loading import find_kind
from maskwright.inference.precision import Computing
from maskwright.inference.search.lexical import BM25, LexicalIndex, check_bm25
from maskwright.inference.search.nearest import Nearest
from maskwright.inference.search.rerank import Reranker
from maskwright.inference.search.retriever import SCORE_NAMES, open_retriever
from maskwright.models.files.model_folder import resolve_folder
from maskwright.runs.eval.report import ItemScores, Report, build_report
from maskwright.tasks.retrieval.collection import Collection, read_collection

RERANK_DEPTH = 100
_PART = 8_192
"""Documents that are embedded at a time."""
_TIES = 10
"""Documents beyond what is measured, so that equal scores at its end are put in order too."""


@dataclass(frozen=True)
class RetrievalOptions:
    split: str | None = None
    """Whose judgements are used; None: test, or the only one."""
    pooling: str | None = None
    rerank: str | None = None
    """A model that puts what the first model finds in another order."""
    rerank_depth: int | None = None
    """Documents of a query that it reads; None: 100."""
    computing: Computing = field(default_factory=Computing)


def evaluate_retrieval(models: Sequence[str], sources: Sequence[str], options: RetrievalOptions) -> Report:
    """Every query against all documents; two models answer the same queries."""
    if len(sources) != 1:
        raise InputError(f"retrieval reads one collection, {len(sources)} are given; evaluate one after another")
    for name in models:
        if name == BM25:
            check_bm25()
    if options.rerank_depth is not None and options.rerank is None:
        raise InputError("--rerank-depth is for --rerank; leave it out, or name a reranker")
    collection = read_collection(sources[0], options.split)
    grades = [collection.grades[query] for query in collection.queries]
    found = [rank_documents(name, collection, options) for name in models]
    if options.rerank is not None:
        found[0] = rerank_documents(found[0], collection, options)
    scores = [ItemScores(measure_rankings(one, grades), [None] * len(grades)) for one in found]
    num_empty = sum(not text for text in collection.documents.values())
    totals = {
        "documents": len(collection.documents),
        "queries": len(collection.queries),
        **({"empty_documents": num_empty} if num_empty else {}),
        **({"unanswered_queries": collection.num_unanswered} if collection.num_unanswered else {}),
    }
    kinds = dict.fromkeys(
        _name_scores(name) + (", reranked" if options.rerank and not number else "")
        for number, name in enumerate(models)
    )
    score = f"{' against '.join(kinds)}, exact, over all documents; judgements of {collection.split}"
    return build_report("retrieval", models, scores, score=score, items="queries", groups={}, totals=totals)


def rank_documents(name: str, collection: Collection, options: RetrievalOptions) -> list[Found]:
    """The best documents of every query, by a model or by BM25; documents without a text are never found."""
    names = [one for one, text in collection.documents.items() if text]
    texts, queries = [collection.documents[one] for one in names], list(collection.queries.values())
    if not texts:
        raise InputError(f"{collection.folder} holds no document with a text; nothing can be found")
    if name == BM25:
        nearest = LexicalIndex.build(texts).find(queries, DEPTH + _TIES)
    else:
        nearest = _find_by_model(name, texts, queries, options)
    return [
        Found([names[place] for place in places], scores.tolist())
        for places, scores in zip(nearest.places, nearest.scores, strict=True)
    ]


def rerank_documents(found: Sequence[Found], collection: Collection, options: RetrievalOptions) -> list[Found]:
    """The best documents of each query in the order of a reranker, before all others as they were."""
    assert options.rerank is not None
    reranker = Reranker(options.rerank, options.computing.precision or "fp32", options.computing.compile)
    depth = options.rerank_depth or RERANK_DEPTH
    ranked = [one.rank() for one in found]
    texts = [[collection.documents[name] for name in names[:depth]] for names in ranked]
    scores = reranker.score(list(collection.queries.values()), texts)
    # What the reranker did not read keeps its order below what it read.
    return [
        Found(names, [*own, *(min(own) - 1.0 - place for place in range(len(names) - len(own)))])
        for names, own in zip(ranked, scores, strict=True)
    ]


def _find_by_model(name: str, texts: list[str], queries: list[str], options: RetrievalOptions) -> Nearest:
    if options.pooling == "none":
        raise InputError("--pooling is none, which gives many vectors to a text; to compare texts use mean or cls")
    computing = options.computing
    retriever = open_retriever(
        name, pooling=options.pooling, precision=computing.precision or "fp32", compile=computing.compile
    )
    parts = [retriever.store_texts(texts[start : start + _PART]) for start in range(0, len(texts), _PART)]
    return retriever.find(retriever.embed_queries(queries), parts, DEPTH + _TIES)


def _name_scores(name: str) -> str:
    """What a report calls the scores of a model or of BM25."""
    return "BM25" if name == BM25 else SCORE_NAMES[find_kind(resolve_folder(name))]
