"""A model as mteb runs its tasks on it: `mteb.evaluate(mw.open_mteb("runs/retriever"), tasks)`.

mteb calls whatever has the methods of its protocols. A model of one vector encodes, a sparse or late retriever searches
by itself, and a reranker scores pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from maskwright.inference.loading import find_kind
from maskwright.inference.pipeline import Pipeline, pipeline
from maskwright.inference.search.rerank import Reranker
from maskwright.inference.search.retriever import Arrays, Retriever, open_retriever
from maskwright.models.files.model_folder import find_task_architecture, read_config, resolve_folder
from maskwright.runs.search.index import describe_model
from maskwright.suggestions import checks_arguments
from maskwright.tasks.heads import TEXT_ROLES
from maskwright.tasks.retrieval.settings import COLBERT, DENSE

_QUERY, _DOCUMENT = TEXT_ROLES
_ROLES = {"query": _QUERY, "document": _DOCUMENT, "passage": _DOCUMENT}
"""mteb's names of what a text is, and ours."""
_TYPES = {DENSE: "dense", COLBERT: "late-interaction"}
_SPARSE, _RERANKER = "sparse", "cross-encoder"
Batches = Iterable[Mapping[str, Any]]
"""A data loader of mteb: each batch has a list `text`, with titles before documents."""


class MtebModel:
    """What mteb wants to know of every model."""

    def __init__(self, name: str, kind: str) -> None:
        self._name, self._kind = name, kind
        self._revision = describe_model(name).fingerprint

    @property
    def mteb_model_meta(self) -> Any:
        """Name and a hash of the model's files, under which mteb keeps results."""
        meta = import_module("mteb.models.model_meta").ModelMeta
        name = Path(self._name).resolve().name
        return meta.create_empty({"name": f"maskwright/{name}", "revision": self._revision, "model_type": [self._kind]})


class MtebEncoder(MtebModel):
    """A vector of each text, compared by cosines."""

    def __init__(self, name: str, precision: str | None) -> None:
        super().__init__(name, _TYPES[DENSE])
        embed = pipeline("embed", name, precision=precision)
        self._embed: dict[str | None, Pipeline[str, Any]] = {None: embed}
        self._embed |= {theirs: embed.with_options({"role": ours}) for theirs, ours in _ROLES.items()}

    def encode(self, inputs: Batches, *, prompt_type: Any = None, **_: Any) -> NDArray[np.float32]:
        """(texts, D); a text without tokens has a vector of zeros. The prompt is that of queries or of documents."""
        vectors = self._embed[getattr(prompt_type, "value", None)](_list_texts(inputs))
        width = next((len(one) for one in vectors if one is not None), 1)
        return np.stack([np.zeros(width, np.float32) if one is None else one for one in vectors])

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """(N, M) cosines of all with all."""
        return _normalize(embeddings1) @ _normalize(embeddings2).T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """(N,) cosines of each with its partner."""
        return (_normalize(embeddings1) * _normalize(embeddings2)).sum(-1)


def _normalize(vectors: Any) -> Tensor:
    return F.normalize(torch.as_tensor(vectors, dtype=torch.float32), dim=-1)


class MtebSearch(MtebModel):
    """A retriever of other than one vector, which finds the documents by itself."""

    def __init__(self, name: str, retriever: Retriever) -> None:
        super().__init__(name, _TYPES.get(retriever.kind, _SPARSE))
        self._retriever = retriever
        self._ids: list[str] = []
        self._part: tuple[Arrays, int] = {}, 0

    def index(self, corpus: Any, **_: Any) -> None:
        """Documents with `id`, `text` and perhaps `title`; those without a text are never found."""
        records = [(str(one["id"]), _join(one)) for one in corpus]
        self._ids = [name for name, text in records if text]
        self._part = self._retriever.store_texts([text for _, text in records if text])

    def search(
        self, queries: Any, *, top_k: int, top_ranked: Mapping[str, Sequence[str]] | None = None, **_: Any
    ) -> dict[str, dict[str, float]]:
        """The scores of the best documents of each query, or of those that `top_ranked` lists for it."""
        names = [str(one["id"]) for one in queries]
        vectors = self._retriever.embed_queries([str(one["text"]) for one in queries])
        if top_ranked is None:
            found = self._retriever.find(vectors, [self._part], top_k)
            rows = zip(found.places.tolist(), found.scores.tolist(), strict=True)
            return {
                name: {self._ids[place]: score for place, score in zip(*row, strict=True)}
                for name, row in zip(names, rows, strict=True)
            }
        places = {name: place for place, name in enumerate(self._ids)}
        scores = self._retriever.score_all(vectors, *self._part)
        return {
            name: {one: float(own[places[one]]) for one in top_ranked[name] if one in places}
            for name, own in zip(names, scores, strict=True)
        }


class MtebReranker(MtebModel):
    """A number for a query and a document that are read together."""

    def __init__(self, name: str, precision: str | None) -> None:
        super().__init__(name, _RERANKER)
        self._reranker = Reranker(name, precision)

    def predict(self, inputs1: Batches, inputs2: Batches, **_: Any) -> NDArray[np.float64]:
        """(pairs,) the scores of queries with documents."""
        queries, documents = _list_texts(inputs1), _list_texts(inputs2)
        return np.asarray([score for (score,) in self._reranker.score(queries, [[text] for text in documents])])


def _list_texts(batches: Batches) -> list[str]:
    return [text for batch in batches for text in batch["text"]]


def _join(record: Mapping[str, Any]) -> str:
    return " ".join(part for part in (record.get("title"), record.get("text")) if part).strip()


@checks_arguments
def open_mteb(model: str | Path, *, precision: str | None = None) -> MtebModel:
    """A run, a model folder or a hub id as mteb 2 takes models: `mteb.evaluate(open_mteb("runs/retriever"), tasks)`.

    The prompts are those that the model was trained with, and long texts are read in windows, as `eval` does.
    """
    name = str(model)
    architecture = find_task_architecture(read_config(resolve_folder(name)))
    if architecture is not None and architecture.endswith("ForSequenceClassification"):
        return MtebReranker(name, precision)
    if find_kind(resolve_folder(name)) == DENSE:
        return MtebEncoder(name, precision)
    return MtebSearch(name, open_retriever(name, precision=precision))
