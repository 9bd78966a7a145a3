"""Indexes of a server: `POST /search` answers as `maskwright search` does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maskwright.errors import InputError
from maskwright.inference.loading import Source
from maskwright.inference.search.index_folder import Manifest, read_manifest
from maskwright.inference.search.lexical import BM25
from maskwright.models.files.model_folder import resolve_folder
from maskwright.runs.search.index import describe_model
from maskwright.runs.search.search import Hit, Searcher, check_queries
from maskwright.serving.models import ServedModel


@dataclass(frozen=True)
class AskedIndex:
    """The folder of an index, and the model it was made with."""

    folder: Path
    source: str | None
    """None: it has none."""


class ServedIndex:
    """An index that is open, with its model, whose queries are computed in one batch with other requests."""

    def __init__(
        self, index_id: str, searcher: Searcher, model: ServedModel | None, threads: ThreadPoolExecutor
    ) -> None:
        self.id = index_id
        self.num_documents = searcher.index.manifest.num_documents
        self._searcher = searcher
        self._model = model
        self._threads = threads

    async def search(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """The documents that `maskwright search` finds."""
        check_queries(queries)
        loop = asyncio.get_running_loop()
        if self._model is None:
            return await loop.run_in_executor(self._threads, self._searcher.search, queries, top_k)
        kind, _ = self._model.embedding
        answered = await self._model.ask(kind, list(queries), self._searcher.query_options)
        return await loop.run_in_executor(self._threads, self._searcher.search_vectors, answered.answers, top_k)

    def describe(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "documents": self.num_documents,
            "kind": self._searcher.index.manifest.kind,
            "model": None if self._model is None else self._model.id,
            "ready": True,
            "error": None,
        }


def plan_indexes(folders: Sequence[str | Path], sources: Sequence[Source]) -> tuple[list[AskedIndex], list[Source]]:
    """The indexes, and all models that are to be loaded: those given, and those that indexes were made with."""
    asked, every = [], list(sources)
    for folder in map(Path, folders):
        manifest = read_manifest(folder)
        if manifest.kind == BM25:
            asked.append(AskedIndex(folder, None))
            continue
        source = _find_source(folder, manifest, [one for one in every if isinstance(one, str | Path)])
        asked.append(AskedIndex(folder, str(source)))
        if source not in every:
            every.append(source)
    return asked, every


def _find_source(folder: Path, manifest: Manifest, given: Sequence[str | Path]) -> str | Path:
    """The model where the index says, under the name that was given for it; or a given one with the same files."""
    try:
        own = resolve_folder(manifest.model).resolve()
    except InputError:
        same = (one for one in given if _is_model_of(manifest, one))
        found = next(same, None)
        if found is None:
            raise InputError(
                f"{folder} was made with {manifest.model}, which is not there; name its model among the models to serve"
            ) from None
        return found
    return next((one for one in given if resolve_folder(one).resolve() == own), manifest.model)


def _is_model_of(manifest: Manifest, name: str | Path) -> bool:
    try:
        return describe_model(str(name), manifest.store, manifest.dims).fingerprint == manifest.fingerprint
    except InputError:  # its vectors cannot be stored so: it is another kind of model
        return False
