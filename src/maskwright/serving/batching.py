"""Requests become packed batches: a queue for each model, and one thread that computes.

The thread takes what waits, up to a number of tokens, from one group after another. A group is what one call of
`run_packed` can answer: the requests of a model for a kind of prediction. A request larger than a batch is
computed in parts, and others have their turn between them.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from maskwright.inference.runner import Kind, Sample, run_packed
from maskwright.serving.refusals import Refusal


@dataclass(eq=False)
class Work:
    """The samples of a request, and what comes of them."""

    kind: Kind[Any, Any]
    samples: Sequence[Sample]
    group: Hashable
    """Works of a group have the same model, and kinds whose `reduce` is the same."""
    finish: Callable[[Work], None]
    """Called in the computing thread when there are all results, or an error."""
    is_dropped: bool = False
    """Nobody waits for it any more."""
    results: list[Any] = field(default_factory=list)
    error: BaseException | None = None
    num_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_tokens = sum(len(sample.ids) for sample in self.samples)

    @property
    def num_left(self) -> int:
        return len(self.samples) - len(self.results)


class Part(NamedTuple):
    """Some samples of a work, in a batch."""

    work: Work
    samples: Sequence[Sample]


class Batcher:
    """The computing thread of a device, for all models on it."""

    def __init__(
        self,
        batch_tokens: int,
        max_wait_s: float,
        max_queue_tokens: int,
        count_batch: Callable[[Hashable, int, float], None] = lambda group, tokens, seconds: None,
    ) -> None:
        """`count_batch` is told of every batch: its group, tokens and seconds."""
        self.batch_tokens = batch_tokens
        self._max_wait_s = max_wait_s
        self._max_queue_tokens = max_queue_tokens
        self._count_batch = count_batch
        self._changed = threading.Condition()
        self._groups: OrderedDict[Hashable, deque[Work]] = OrderedDict()
        self._num_waiting_tokens = 0
        self._num_coming = 0
        self._is_closed = False
        self._thread = threading.Thread(target=self._compute_all, name="batches", daemon=True)
        self._thread.start()

    @property
    def num_waiting_tokens(self) -> int:
        return self._num_waiting_tokens

    def count_waiting(self, is_counted: Callable[[Hashable], bool]) -> int:
        """Samples that wait, of the groups that are counted."""
        with self._changed:
            groups = [works for group, works in self._groups.items() if is_counted(group)]
            return sum(work.num_left for works in groups for work in works)

    @contextmanager
    def expecting(self) -> Iterator[None]:
        """Around the preparation of a request: a batch with room may wait for it."""
        with self._changed:
            self._num_coming += 1
        try:
            yield
        finally:
            with self._changed:
                self._num_coming -= 1
                self._changed.notify()

    def put(self, work: Work) -> None:
        """Refuses the work if too much is waiting."""
        with self._changed:
            if self._is_closed:
                raise Refusal(503, "the server is stopping; send the request to another one")
            waiting = self._num_waiting_tokens
            if waiting and waiting + work.num_tokens > self._max_queue_tokens:
                raise Refusal(429, f"{waiting:,} tokens wait to be computed; send the request again later", 1)
            self._num_waiting_tokens += work.num_tokens
            self._groups.setdefault(work.group, deque()).append(work)
            self._changed.notify()

    def close(self) -> None:
        """Computes what waits, and ends."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _compute_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._groups or self._is_closed)
                if not self._groups:
                    return
                self._wait_for_more()
                parts = self._take()
            if parts:
                begun_s = time.perf_counter()
                self._compute(parts)
                num_tokens = sum(_count_tokens(part.samples) for part in parts)
                self._count_batch(parts[0].work.group, num_tokens, time.perf_counter() - begun_s)

    def _wait_for_more(self) -> None:
        """While another request is being prepared and there is room for it."""
        until_s = time.monotonic() + self._max_wait_s
        while self._num_coming and self._num_waiting_tokens < self.batch_tokens and not self._is_closed:
            left_s = until_s - time.monotonic()
            if left_s <= 0 or not self._changed.wait(left_s):
                return

    def _take(self) -> list[Part]:
        """A batch of the group whose turn it is, which then goes behind the others."""
        group, works = self._groups.popitem(last=False)
        parts: list[Part] = []
        room = self.batch_tokens
        while works and room > 0:
            work = works.popleft()
            if work.is_dropped:
                self._num_waiting_tokens -= _count_tokens(work.samples[len(work.results) :])
                continue
            part = _take_part(work, room, may_exceed=not parts)
            num_tokens = _count_tokens(part)
            if part:
                parts.append(Part(work, part))
                self._num_waiting_tokens -= num_tokens
                room -= num_tokens
            if len(part) < work.num_left:
                # one that was begun waits for the others; one that found no room is the next
                works.append(work) if part else works.appendleft(work)
                break
        if works:
            self._groups[group] = works
        return parts

    def _compute(self, parts: Sequence[Part]) -> None:
        """Where a batch fails each of its works is tried alone, so that one does not fail with another."""
        kind = parts[0].work.kind
        samples = [sample for part in parts for sample in part.samples]
        try:
            results = deque(
                run_packed(
                    kind.encoder,
                    samples,
                    kind.reduce,
                    pad_token_id=kind.pad_token_id,
                    model=kind.module,
                    batch_tokens=self.batch_tokens,
                    find_causal=kind.find_causal,
                )
            )
        except Exception as error:  # it is the answer to the request
            if len(parts) > 1:
                for part in parts:
                    self._compute([part])
                return
            self._fail(parts[0], error)
            return
        for part in parts:
            part.work.results += [results.popleft() for _ in part.samples]
            if not part.work.num_left:
                part.work.finish(part.work)

    def _fail(self, part: Part, error: Exception) -> None:
        """What is left of the work leaves the queue."""
        work = part.work
        work.error = error
        with self._changed:
            works = self._groups.get(work.group)
            if works is not None and work in works:
                works.remove(work)
                self._num_waiting_tokens -= _count_tokens(work.samples[len(work.results) + len(part.samples) :])
                if not works:
                    del self._groups[work.group]
        work.finish(work)


def _take_part(work: Work, room: int, may_exceed: bool) -> Sequence[Sample]:
    """The next samples that fit; one that fits no batch has a batch of its own."""
    first = len(work.results)
    stop = first
    while stop < len(work.samples) and (len(work.samples[stop].ids) <= room or (may_exceed and stop == first)):
        room -= len(work.samples[stop].ids)
        stop += 1
    return work.samples[first:stop]


def _count_tokens(samples: Sequence[Sample]) -> int:
    return sum(len(sample.ids) for sample in samples)
