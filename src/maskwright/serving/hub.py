"""All models of a server: loaded one after another, found by requests."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from maskwright.errors import InputError, RunError, describe_shortage
from maskwright.inference.loading import Source
from maskwright.inference.pipeline import build_pipelines
from maskwright.models.files.model_folder import CHECKPOINTS_FOLDER, MODEL_FOLDER
from maskwright.runs.search.search import Searcher
from maskwright.serving.batching import Batcher
from maskwright.serving.metrics import Meter
from maskwright.serving.models import ServedModel
from maskwright.serving.refusals import Refusal
from maskwright.serving.search import AskedIndex, ServedIndex
from maskwright.serving.settings import ServeSettings
from maskwright.suggestions import suggest

_log = logging.getLogger(__name__)
_CPU_BATCH_TOKENS = 512
"""As quick for a token as a larger batch, and other requests wait less for it."""
_GPU_BATCH_TOKENS = 16_384
_MAX_CPU_THREADS = 4
"""Batches at a time on a CPU: a batch on a core of its own waits for no other core between its products."""


@dataclass
class IndexEntry:
    """An index that was asked for."""

    folder: Path
    source: str | None
    """Of its model; None where it has none."""
    index: ServedIndex | None = None
    error: str | None = None


@dataclass
class Entry:
    """A model that was asked for."""

    source: Source
    path_name: str
    model: ServedModel | None = None
    error: str | None = None
    """Why it is not there and never will be."""

    def is_of(self, name: str) -> bool:
        return isinstance(self.source, str | Path) and str(self.source) == name


class ModelHub:
    def __init__(
        self,
        sources: Sequence[Source],
        settings: ServeSettings,
        threads: ThreadPoolExecutor,
        meter: Meter,
        device: str | None = None,
        tokenizer: Any = None,
        indexes: Sequence[AskedIndex] = (),
    ) -> None:
        """`tokenizer` is that of a model in memory. The models of indexes are among the sources."""
        named = name_models(sources)
        self.entries = {model_id: Entry(source, name) for source, (model_id, name) in zip(sources, named, strict=True)}
        names = name_models([asked.folder for asked in indexes])
        self.indexes = {
            name: IndexEntry(asked.folder, asked.source) for asked, (name, _) in zip(indexes, names, strict=True)
        }
        self._settings = settings
        self._threads = threads
        self._meter = meter
        self._device = device
        self._tokenizer = tokenizer
        self._batchers: dict[torch.device, Batcher] = {}

    @property
    def models(self) -> dict[str, ServedModel]:
        """Those that answer."""
        return {model_id: one.model for model_id, one in self.entries.items() if one.model is not None}

    @property
    def is_loaded(self) -> bool:
        """Whether every model is there or has failed, and one at least is there."""
        settled = all(one.model is not None or one.error is not None for one in self.entries.values())
        settled &= all(one.index is not None or one.error is not None for one in self.indexes.values())
        answers = bool(self.models) or any(one.index is not None for one in self.indexes.values())
        return settled and (answers or not self.entries)

    @property
    def errors(self) -> dict[str, str]:
        """Of models and indexes that are not there and never will be."""
        failed = {name: entry.error for name, entry in self.entries.items()}
        failed |= {name: entry.error for name, entry in self.indexes.items() if entry.error is not None}
        return {name: error for name, error in failed.items() if error is not None}

    @property
    def waiting(self) -> tuple[int, int]:
        """Samples and tokens in the queues."""
        models = list(self.models.values())
        return sum(one.num_waiting for one in models), sum(one.num_waiting_tokens for one in self._batchers.values())

    def load_all(self, say: Callable[[str], None] = lambda line: None) -> None:
        """A model that cannot be loaded leaves the others as they are."""
        for model_id, entry in self.entries.items():
            try:
                model = self._load(model_id, entry)
                model.warm_up()
                entry.model = model
                say(f"{model_id}: {', '.join(model.kinds)}")
            except Exception as error:
                entry.error = _describe_failure(error)
                say(f"{model_id} cannot be served: {entry.error}")
        for index_id, index in self.indexes.items():
            try:
                index.index = self._open(index_id, index)
                say(f"{index_id}: search in {index.index.num_documents:,} documents")
            except Exception as error:
                index.error = _describe_failure(error)
                say(f"{index_id} cannot be searched: {index.error}")

    def _open(self, index_id: str, entry: IndexEntry) -> ServedIndex:
        if entry.source is None:
            return ServedIndex(index_id, Searcher(entry.folder), None, self._threads)
        owner = next(one for one in self.entries.values() if one.is_of(entry.source))
        if owner.model is None:
            raise InputError(f"its model cannot be served: {owner.error}")
        searcher = Searcher(entry.folder, entry.source, owner.model.embedding[1])
        return ServedIndex(index_id, searcher, owner.model, self._threads)

    def find_index(self, index_id: str | None) -> ServedIndex:
        """The index of this id, or the first that is there."""
        if not self.indexes:
            raise Refusal(404, "no index is served here; start the server with --index FOLDER")
        if index_id is None:
            index_id = next((name for name, one in self.indexes.items() if one.index), next(iter(self.indexes)))
        if index_id not in self.indexes:
            raise Refusal(404, f"there is no index '{index_id:.80}'{suggest(index_id, self.indexes)}")
        entry = self.indexes[index_id]
        if entry.index is None:
            raise Refusal(503, entry.error or f"the index '{index_id}' is still being loaded", 1)
        return entry.index

    def _load(self, model_id: str, entry: Entry) -> ServedModel:
        tokenizer = self._tokenizer if isinstance(entry.source, nn.Module) else None
        built = build_pipelines(entry.source, tokenizer, self._device, self._settings.precision, self._settings.compile)
        device = next(built.loaded.module.parameters()).device
        if device not in self._batchers:
            self._batchers[device] = self._build_batcher(device)
        return ServedModel(
            model_id, entry.path_name, built, self._batchers[device], self._threads, self._settings, self._meter
        )

    def _build_batcher(self, device: torch.device) -> Batcher:
        settings = self._settings
        usual = _CPU_BATCH_TOKENS if device.type == "cpu" else _GPU_BATCH_TOKENS
        limits = (
            settings.batch_tokens or usual,
            settings.max_wait_ms / 1e3,
            settings.max_queue_tokens,
            settings.max_queue_s,
        )
        if device.type != "cpu":
            return Batcher(*limits, self._count_batch)
        num_cores = torch.get_num_threads()
        num_threads = min(num_cores, _MAX_CPU_THREADS)
        return Batcher(*limits, self._count_batch, num_threads, num_cores // num_threads)

    def _count_batch(self, group: Hashable, num_tokens: int, seconds: float) -> None:
        assert isinstance(group, tuple)
        model = self.models.get(group[0])
        if model is not None:
            model.meter.count_batch(num_tokens, seconds)

    def find(self, model_id: str | None, *kinds: str) -> ServedModel:
        """The model of this id, or the first, that has one of the kinds."""
        if model_id is None:
            for model in self.models.values():
                if any(kind in model.kinds for kind in kinds):
                    return model
            self._refuse_kind(kinds[0])
        if model_id not in self.entries:
            raise Refusal(404, f"there is no model '{model_id:.80}'{suggest(model_id or '', self.entries)}")
        entry = self.entries[model_id]
        if entry.model is None:
            raise Refusal(503, entry.error or f"the model '{model_id}' is still being loaded", 1)
        entry.model.check_kind(*kinds)
        return entry.model

    def _refuse_kind(self, kind: str) -> None:
        if not self.is_loaded:
            raise Refusal(503, "the models are still being loaded", 1)
        kinds = sorted({one for model in self.models.values() for one in model.kinds})
        raise Refusal(422, f"no model here has {kind}; there are {', '.join(kinds)}")

    def describe(self) -> list[dict[str, Any]]:
        """Of a model that is not there, all but its names is null."""
        missing = dict.fromkeys(
            (
                "family",
                "parameters",
                "max_length",
                "vocab_size",
                "mask_token",
                "dtype",
                "device",
                "labels",
                "default_kind",
            )
        )
        return [
            entry.model.describe()
            if entry.model is not None
            else {
                **missing,
                "id": name,
                "path_name": entry.path_name,
                "kinds": [],
                "ready": False,
                "error": entry.error,
            }
            for name, entry in self.entries.items()
        ]

    def describe_indexes(self) -> list[dict[str, Any]]:
        """Of an index that is not there, all but its name is null."""
        missing = dict.fromkeys(("documents", "kind", "model"))
        return [
            entry.index.describe()
            if entry.index is not None
            else {**missing, "id": name, "ready": False, "error": entry.error}
            for name, entry in self.indexes.items()
        ]

    def close(self) -> None:
        """Computes what waits in the queues first."""
        for batcher in self._batchers.values():
            batcher.close()


def _describe_failure(error: Exception) -> str:
    if isinstance(error, InputError | RunError | OSError):
        return str(error)
    shortage = describe_shortage(error)
    if shortage is None:
        _log.error("a model cannot be loaded", exc_info=error)
    return shortage or f"loading failed with a {type(error).__name__}; the log says where"


def name_models(sources: Sequence[Source]) -> list[tuple[str, str]]:
    """The id of each model, and the name of its folder or on the hub: never a whole path."""
    names = [_name_source(source) for source in sources]
    taken: dict[str, int] = {}
    found = []
    for name in names:
        taken[name] = taken.get(name, 0) + 1
        found.append((name if taken[name] == 1 else f"{name}-{taken[name]}", name))
    return found


def _name_source(source: Source) -> str:
    if isinstance(source, nn.Module):
        return type(source).__name__
    path = Path(source)
    if not path.exists():
        return str(source)
    path = path.resolve()
    while path.name in (MODEL_FOLDER, CHECKPOINTS_FOLDER) or path.parent.name == CHECKPOINTS_FOLDER:
        path = path.parent
    return path.name
