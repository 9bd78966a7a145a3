"""The parts of a prediction on a Ray cluster: actors hold the model, and each part is answered by one of them.

There is an actor to each GPU, or to each core where there are none; new nodes get theirs, and what a lost one was doing
is done by others. Parts are those of a prediction on one machine and come back in their order, so the answers do not
depend on who gave them. The model's files go to the nodes from here: they need no disk in common.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from maskwright.errors import InputError, RunError, cut_message
from maskwright.inference.pipeline import pipeline
from maskwright.machine import hash_package
from maskwright.models.files.model_folder import list_model_files, resolve_folder
from maskwright.runs.ray_cluster import check_same_code, connect_ray, find_address
from maskwright.runs.rows import AskedRow

_CALLS_AHEAD = 2
"""Parts that an actor has at a time, so that it does not wait for the next."""
_PARTS_AHEAD = 4
"""Parts in memory to each actor: a slow one must not hold up the others."""
_MOST_LOSSES = 10
"""How often a part, or the start of an actor, may be lost one time after another."""
_LOOK_S = 5.0
_PATIENCE_S = 30.0


@dataclass(frozen=True)
class PredictorSettings:
    """What an actor builds its pipeline with."""

    kind: str
    options: Mapping[str, Any]
    device: str | None
    batch_tokens: int | None
    precision: str | None
    compile: Any


@dataclass(frozen=True)
class PredictorFacts:
    """What an actor found on its node."""

    precision: str
    described_precision: str
    is_on_gpu: bool


@dataclass(frozen=True)
class AnsweredPart:
    answers: Sequence[Any]
    num_tokens: int


class _Predictor:
    """Runs on a node."""

    def load(
        self, settings: PredictorSettings, files: Mapping[str, np.ndarray], must_answer: bool, code: str
    ) -> PredictorFacts:
        check_same_code(code)
        with tempfile.TemporaryDirectory() as temporary:
            for name, content in files.items():
                path = Path(temporary) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.data)
            self._pipeline = pipeline(
                settings.kind,
                temporary,
                device=settings.device,
                batch_tokens=settings.batch_tokens,
                precision=settings.precision,
                compile=settings.compile,
                **settings.options,
            )
        self._must_answer = must_answer
        chosen = self._pipeline.precision
        device = next(self._pipeline.kind.module.parameters()).device
        return PredictorFacts("fp32" if chosen is None else chosen.name, str(chosen), device.type != "cpu")

    def answer(self, items: Sequence[Any], num_before: int) -> AnsweredPart:
        before = self._pipeline.num_tokens
        stream = self._pipeline.stream(items, must_answer=self._must_answer, num_before=num_before)
        answers = [answer for _, answer in stream]
        return AnsweredPart(answers, self._pipeline.num_tokens - before)


@dataclass
class _Part:
    rows: list[AskedRow]
    num_before: int
    num_losses: int = 0
    answered: AnsweredPart | None = None


def _map_file(path: Path) -> np.ndarray:
    """Its bytes as an array, which go into the cluster's memory without passing through this process's."""
    if not path.stat().st_size:  # an empty file cannot be mapped
        return np.empty(0, np.uint8)
    return np.memmap(path, np.uint8, "r").view(np.ndarray)


class RayPredictors:
    """Answers parts on the cluster that `on` names."""

    def __init__(self, on: str, model: str | Path, settings: PredictorSettings, say: Callable[[str], None]) -> None:
        self._ray = connect_ray(find_address(on))
        self._say = say
        resources = self._ray.cluster_resources()
        self._resource = "GPU" if settings.device != "cpu" and resources.get("GPU", 0) >= 1 else "CPU"
        if settings.device not in (None, "auto", "cpu", "cuda"):
            raise InputError(f"--device is {settings.device}; with --on the cluster chooses among cpu and cuda")
        if settings.device == "cuda" and self._resource == "CPU":
            raise InputError("--device is cuda, and the Ray cluster has no GPU; leave it out, or add nodes with GPUs")
        self._settings = settings
        folder = resolve_folder(model)
        files = {path.relative_to(folder).as_posix(): _map_file(path) for path in list_model_files(folder)}
        self._files = self._ray.put(files)
        options = {"num_cpus": 1, "num_gpus": int(self._resource == "GPU"), "max_restarts": 0}
        self._kind = self._ray.remote(_Predictor).options(**options)
        self._starting: dict[Any, Any] = {}
        """Actors by what they load their model with."""
        self._actors: dict[Any, dict[Any, _Part]] = {}
        """Those with a model, and the parts that each is answering."""
        self._num_failed_starts = 0
        self._facts: PredictorFacts | None = None

    def find_facts(self, must_answer: bool) -> PredictorFacts:
        """What the first actor finds; the others compute as it does."""
        self._must_answer = must_answer
        waited_s = 0.0
        while self._facts is None:
            if not self._starting:
                self._start()
            if not self._collect():
                waited_s += _LOOK_S
                if waited_s == _PATIENCE_S:
                    self._say(f"waiting for the Ray cluster to give a {self._resource}")
        return self._facts

    def answer(self, parts: Iterator[list[AskedRow]], num_before: int) -> Iterator[tuple[list[AskedRow], AnsweredPart]]:
        """The parts in their order."""
        waiting: deque[_Part] = deque()
        unfinished: deque[_Part] = deque()
        is_all = False
        while True:
            num_places = max(1, int(self._ray.cluster_resources().get(self._resource, 0)))
            while not is_all and len(unfinished) < _PARTS_AHEAD * num_places:
                rows = next(parts, None)
                if rows is None:
                    is_all = True
                else:
                    part = _Part(rows, num_before)
                    num_before += len(rows)
                    waiting.append(part)
                    unfinished.append(part)
            while unfinished and (answered := unfinished[0].answered) is not None:
                yield unfinished.popleft().rows, answered
            if is_all and not unfinished:
                return
            num_open = sum(part.answered is None for part in unfinished)
            while len(self._starting) + len(self._actors) < min(num_places, num_open):
                self._start()
            self._hand_out(waiting)
            self._collect(waiting)

    def _start(self) -> None:
        actor = self._kind.remote()
        settings = self._settings if self._facts is None else replace(self._settings, precision=self._facts.precision)
        self._starting[actor.load.remote(settings, self._files, self._must_answer, hash_package())] = actor

    def _hand_out(self, waiting: deque[_Part]) -> None:
        for num_calls in range(_CALLS_AHEAD):
            for actor, calls in self._actors.items():
                if waiting and len(calls) == num_calls:
                    part = waiting.popleft()
                    items = [row.asked for row in part.rows]
                    calls[actor.answer.remote(items, part.num_before)] = part

    def _collect(self, waiting: deque[_Part] | None = None) -> bool:
        """Take what has come since, if anything; parts of lost actors wait again."""
        calls = [*self._starting, *(call for answering in self._actors.values() for call in answering)]
        ready, _ = self._ray.wait(calls, num_returns=1, timeout=_LOOK_S)
        for call in ready:
            if call in self._starting:
                self._take_start(call)
            else:
                self._take_answer(call, waiting)
        return bool(ready)

    def _take_start(self, call: Any) -> None:
        facts, lost = self._get(call)
        actor = self._starting.pop(call)
        if lost is None:
            self._facts = self._facts or facts
            self._actors[actor] = {}
            self._num_failed_starts = 0
            return
        self._ray.kill(actor)
        self._num_failed_starts += 1
        if self._num_failed_starts >= _MOST_LOSSES:
            raise RunError(f"{_MOST_LOSSES} actors in a row were lost before they had the model: {lost}")

    def _take_answer(self, call: Any, waiting: deque[_Part] | None) -> None:
        actor = next((actor for actor, calls in self._actors.items() if call in calls), None)
        if actor is None:  # it was lost with another of its parts
            return
        answered, lost = self._get(call)
        if lost is None:
            self._actors[actor].pop(call).answered = answered
            return
        self._ray.kill(actor)  # it may be alive where only its answer is lost
        parts = sorted(self._actors.pop(actor).values(), key=lambda part: part.num_before)
        for part in parts:
            part.num_losses += 1
            if part.num_losses >= _MOST_LOSSES:
                raise RunError(
                    f"the rows from {part.num_before:,} on were lost {_MOST_LOSSES} times with the actors that answered"
                    f" them: {lost}; perhaps there is too little memory (--batch-tokens with fewer of them)"
                )
        assert waiting is not None
        waiting.extendleft(reversed(parts))
        self._say(f"an actor is lost: {lost}; others answer its {len(parts)} parts")

    def _get(self, call: Any) -> tuple[Any, str | None]:
        """What a call gave, or how its actor was lost; errors of the work itself are raised."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(call), None
        except errors.RayTaskError as error:
            if isinstance(error.cause, InputError | RunError):
                raise error.cause from None
            raise RunError(f"a part failed on the Ray cluster: {cut_message(error.cause)}") from error
        except errors.RayError as error:
            return None, f"{type(error).__name__}: {cut_message(error, 200)}"

    def close(self) -> None:
        for actor in [*self._starting.values(), *self._actors]:
            self._ray.kill(actor)
        self._starting, self._actors = {}, {}
