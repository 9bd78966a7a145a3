"""The models of a server: one copy of the weights each, the kinds it can do, and its answers."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import nn

from maskwright.errors import InputError
from maskwright.inference.classify import Classify
from maskwright.inference.embed import Embed
from maskwright.inference.loading import find_retriever
from maskwright.inference.pipeline import EveryKind, Pipeline
from maskwright.inference.runner import Kind, Prepared, TaskKind
from maskwright.inference.search.late_store import match
from maskwright.models.any_encoder import find_max_length, name_encoder
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.serving.batching import Batcher, Work
from maskwright.serving.metrics import Meter
from maskwright.serving.refusals import Refusal
from maskwright.serving.settings import ServeSettings
from maskwright.tasks.retrieval.settings import COLBERT, SPLADE

RERANK = "rerank"
SPARSE = "embed-sparse"
TOKENS = "embed-tokens"
"""Retrievers answer with weights of tokens, or with a vector to each token: no client should take them for vectors."""
EMBEDDING = ("embed", SPARSE, TOKENS)
_RETRIEVING = {SPLADE: SPARSE, COLBERT: TOKENS}
_REDUCED_WITH = {
    "embed": ("pooling",),
    "similarity": ("pooling",),
    "fill-mask": ("top_k", "targets"),
    "qa": ("top_k", "max_answer_length"),
}
"""The options that change what is computed in a batch; the others change samples, or answers after it."""
_SAME_BATCHES = {"similarity": "embed", RERANK: "classify"}
"""Kinds that compute the same of their samples as another."""
_OF_PAIRS = ("similarity", "qa", RERANK)
_SMALL_CHARS = 1_000
_SMALL_TEXTS = 2
_MAX_KINDS = 256
"""Kinds with options of requests that are kept: labels and targets may be new with every request."""


@dataclass(frozen=True)
class Answered:
    answers: list[Any]
    is_single: bool
    num_tokens: int

    @property
    def shaped(self) -> Any:
        """As the inputs came: one alone, or a list."""
        return self.answers[0] if self.is_single else self.answers


class ServedModel:
    """A model that is loaded, on the computing thread of its device."""

    def __init__(
        self,
        model_id: str,
        path_name: str,
        built: EveryKind,
        batcher: Batcher,
        threads: ThreadPoolExecutor,
        settings: ServeSettings,
        server_meter: Meter,
    ) -> None:
        self.id = model_id
        self.path_name = path_name
        self.loaded = built.loaded
        self._precision = built.precision
        self.tokenizer = built.loaded.tokenizer
        self.meter = Meter()
        self._meters = (self.meter, server_meter)
        self._pipelines = _name_kinds(built)
        self._batcher = batcher
        self._threads = threads
        self._settings = settings
        self._kinds: OrderedDict[Hashable, Kind[Any, Any]] = OrderedDict()

    @property
    def kinds(self) -> tuple[str, ...]:
        more = (RERANK,) if TOKENS in self._pipelines else ()  # by `rank` alone
        return (*self._pipelines, *more)

    @property
    def embedding(self) -> tuple[str, Pipeline[str, Any]]:
        """How it embeds texts: one of `EMBEDDING`, with its pipeline."""
        return next((kind, self._pipelines[kind]) for kind in EMBEDDING if kind in self._pipelines)

    async def rank(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """How well the two texts of each pair go together: what a reranker says, or the sum of best matches."""
        if RERANK in self._pipelines:
            return [answer["score"] for answer in (await self.ask(RERANK, pairs)).answers]
        queries = list(dict.fromkeys(query for query, _ in pairs))
        asked = await self.ask(TOKENS, queries, {"role": "query"})
        found = await self.ask(TOKENS, [text for _, text in pairs], {"role": "document"})
        vectors = dict(zip(queries, asked.answers, strict=True))
        return [match(vectors[query], document) for (query, _), document in zip(pairs, found.answers, strict=True)]

    async def ask(self, kind: str, inputs: Any, options: Mapping[str, Any] | None = None) -> Answered:
        """The answers that the pipeline of this kind gives to the inputs; an `InputError` or a `Refusal` otherwise."""
        given = options or {}

        def prepare() -> tuple[Kind[Any, Any], Sequence[Prepared], bool]:
            asked = self._find_kind(kind, given)
            items, is_single = asked.as_items(inputs)
            self._check_number(len(items) * max(len(getattr(asked, "labels", ())), 1))
            prepared = asked.prepare(items, lambda place: f"{asked.item_name} {place + 1:,}")
            for one in prepared:
                if not one.samples:
                    raise InputError(one.problem)
            return asked, prepared, is_single

        is_small = _is_small(inputs) and (not given or (kind, _freeze(given, given)) in self._kinds)
        return await self._answer(kind, given, prepare, is_small)

    async def embed_ids(self, rows: Sequence[Sequence[int]], options: Mapping[str, Any]) -> Answered:
        """Vectors of texts that are tokenized already."""

        def prepare() -> tuple[Kind[Any, Any], Sequence[Prepared], bool]:
            asked = self._find_kind("embed", options)
            assert isinstance(asked, Embed)
            self._check_number(len(rows))
            return asked, asked.prepare_ids(rows), False

        return await self._answer("embed", options, prepare, is_small=False)

    def check_kind(self, *kinds: str) -> None:
        if not any(kind in self.kinds for kind in kinds):
            raise Refusal(422, f"the model '{self.id}' has no {' or '.join(kinds)}; it has {', '.join(self.kinds)}")

    async def _answer(
        self,
        kind: str,
        options: Mapping[str, Any],
        prepare: Callable[[], tuple[Kind[Any, Any], Sequence[Prepared], bool]],
        is_small: bool,
    ) -> Answered:
        """A small request is prepared here: giving it to a thread would take longer."""
        begun_s = time.perf_counter()
        loop = asyncio.get_running_loop()
        group = (self.id, _SAME_BATCHES.get(kind, kind), _freeze(options, _REDUCED_WITH.get(kind, ())))
        self._batcher.refuse_late(group)
        with self._batcher.expecting():
            asked, prepared, is_single = prepare() if is_small else await loop.run_in_executor(self._threads, prepare)
            work = self._put(group, asked, prepared)
        results = await work
        if is_small:
            answers = _join_answers(asked, prepared, results)
        else:
            answers = await loop.run_in_executor(self._threads, _join_answers, asked, prepared, results)
        num_tokens = sum(len(sample.ids) for one in prepared for sample in one.samples)
        for meter in self._meters:
            meter.count_answer(kind, len(prepared), num_tokens, time.perf_counter() - begun_s)
        return Answered(answers, is_single, num_tokens)

    def _put(self, group: Hashable, asked: Kind[Any, Any], prepared: Sequence[Prepared]) -> asyncio.Future[list[Any]]:
        """In the queue; the future has what `reduce` gives of each sample, and takes the work out when cancelled."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Any]] = loop.create_future()
        samples = [sample for one in prepared for sample in one.samples]

        def finish(done: Work) -> None:
            loop.call_soon_threadsafe(_resolve, future, done)

        work = Work(asked, samples, group, finish)
        limit = self._settings.max_request_tokens
        if work.num_tokens > limit:
            raise Refusal(
                422, f"the request has {work.num_tokens:,} tokens, and {limit:,} are allowed; send it in parts"
            )
        if not samples:
            future.set_result([])
            return future

        def drop(ended: asyncio.Future[list[Any]]) -> None:
            work.is_dropped = ended.cancelled()

        future.add_done_callback(drop)
        self._batcher.put(work)
        return future

    def _find_kind(self, kind: str, options: Mapping[str, Any]) -> Kind[Any, Any]:
        """The kind with these options, built when they are first seen."""
        self.check_kind(kind)
        pipeline = self._pipelines[kind]
        if not options:
            return pipeline.kind
        key = (kind, _freeze(options, options))
        found = self._kinds.pop(key, None) or pipeline.with_options(options).kind
        self._kinds[key] = found
        while len(self._kinds) > _MAX_KINDS:
            self._kinds.popitem(last=False)
        return found

    def _check_number(self, num_texts: int) -> None:
        limit = self._settings.max_texts
        if num_texts > limit:
            raise Refusal(422, f"the request has {num_texts:,} texts, and {limit:,} are allowed; send it in parts")

    def warm_up(self) -> None:
        """Compute once what each kind computes, so that the first request does not wait for it."""
        for kind, pipeline in self._pipelines.items():
            if kind != "zero-shot":  # has no labels yet, and computes what classify does
                text = self.tokenizer.mask_token if kind == "fill-mask" else "a"
                pipeline((text, text) if kind in _OF_PAIRS else text)

    @cached_property
    def labels(self) -> list[str] | None:
        kind = next((one.kind for one in self._pipelines.values() if isinstance(one.kind, TaskKind)), None)
        names = None if kind is None else kind.model.task.describe().get("id2label")
        return [str(name) for name in names.values()] if isinstance(names, Mapping) else None

    def describe(self) -> dict[str, Any]:
        module, encoder = self.loaded.module, self.loaded.encoder.encoder
        weight = next(module.parameters())
        return {
            "id": self.id,
            "path_name": self.path_name,
            "family": name_encoder(encoder),
            "parameters": sum(one.numel() for one in module.parameters()),
            "max_length": find_max_length(encoder),
            "vocab_size": self.tokenizer.vocab_size,
            "mask_token": self.tokenizer.mask_token if isinstance(module, MaskedLanguageModel) else None,
            "dtype": str(weight.dtype).removeprefix("torch.") if self._precision is None else self._precision.name,
            "device": str(weight.device),
            "kinds": list(self.kinds),
            "labels": self.labels,
            "default_kind": self.kinds[0],
            "ready": True,
            "error": None,
        }

    @property
    def num_waiting(self) -> int:
        """Texts and windows in its queue."""
        return self._batcher.count_waiting(lambda group: isinstance(group, tuple) and group[0] == self.id)

    @property
    def memory_bytes(self) -> int:
        module: nn.Module = self.loaded.module
        return sum(one.numel() * one.element_size() for one in module.parameters())


def _is_small(inputs: Any) -> bool:
    """One text or a few short ones."""
    if isinstance(inputs, str):
        return len(inputs) <= _SMALL_CHARS
    return isinstance(inputs, list) and len(inputs) <= _SMALL_TEXTS and all(map(_is_small, inputs))


def _resolve(future: asyncio.Future[list[Any]], work: Work) -> None:
    if future.done():  # the client is gone
        return
    if work.error is not None:
        future.set_exception(work.error)
    else:
        future.set_result(work.results)


def _join_answers(kind: Kind[Any, Any], prepared: Sequence[Prepared], results: Sequence[Any]) -> list[Any]:
    asked, first = [], 0
    for one in prepared:
        asked.append((one, results[first : first + len(one.samples)]))
        first += len(one.samples)
    return list(kind.answer_all(asked)) if asked else []


def _freeze(options: Mapping[str, Any], names: Any) -> Hashable:
    frozen = tuple((name, _freeze_value(options[name])) for name in sorted(names) if name in options)
    for name, value in frozen:
        try:
            hash(value)
        except TypeError:
            raise InputError(f"{name} is an object or a list of lists; /docs shows what it takes") from None
    return frozen


def _freeze_value(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _name_kinds(built: EveryKind) -> dict[str, Pipeline[Any, Any]]:
    """A model with one output for a pair of texts says how well they go together."""
    pipelines = dict(built.pipelines)
    whole = built.loaded.whole
    kind = None if whole is None else find_retriever(whole)
    if kind is not None:
        return {_RETRIEVING[kind]: pipelines["embed"]}
    classify = pipelines["classify"].kind if "classify" in pipelines else None
    if isinstance(classify, Classify) and classify.num_labels == 1:
        pipelines[RERANK] = pipelines["classify"]
    return pipelines
