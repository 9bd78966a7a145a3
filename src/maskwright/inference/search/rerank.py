"""The documents found for a query, put in a better order by a model that reads both together."""

from __future__ import annotations

from collections.abc import Sequence

from maskwright.errors import InputError
from maskwright.inference.classify import Classify
from maskwright.inference.pipeline import Pipeline, pipeline
from maskwright.inference.precision import Compile


class Reranker:
    """A model with one number for a pair of texts."""

    def __init__(self, model: str, precision: str | None = None, compile: Compile | None = None) -> None:
        self._score: Pipeline[tuple[str, str], dict[str, float]] = pipeline(
            "classify", model, precision=precision, compile=compile
        )
        kind = self._score.kind
        if not isinstance(kind, Classify) or kind.num_labels != 1:
            raise InputError(
                f"{model} has several classes for a text; a reranker has one number for a query and a document: make"
                " one with finetune rerank"
            )

    def score(self, queries: Sequence[str], documents: Sequence[Sequence[str]]) -> list[list[float]]:
        """A number for each document of each query; larger is better."""
        pairs = [(query, text) for query, texts in zip(queries, documents, strict=True) for text in texts]
        scores = iter([answer["score"] for answer in self._score(pairs)] if pairs else [])
        return [[next(scores) for _ in texts] for texts in documents]
