"""Requests become packed batches: a queue for each model, and the threads of a device that compute.

A thread takes what waits, up to a number of tokens, from one group after another. A group is what one call of
`run_packed` can answer: the requests of a model for a kind of prediction. A request larger than a batch is
computed in parts, and others have their turn between them. A request whose first turn would come too late, by the
seconds that the last batches took, is refused at once: over capacity the answers that are given stay quick.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from maskwright.inference.layout import Sample
from maskwright.inference.runner import Kind, run_packed
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
    results: list[Any] = field(init=False)
    error: BaseException | None = None
    num_taken: int = 0
    num_computed: int = 0
    num_tokens: int = field(init=False)
    num_left_tokens: int = field(init=False)
    waits_since_s: float = 0.0
    """For its next turn."""

    def __post_init__(self) -> None:
        self.num_tokens = self.num_left_tokens = _count_tokens(self.samples)
        self.results = [None] * len(self.samples)

    @property
    def num_left(self) -> int:
        return len(self.samples) - self.num_taken


class Part(NamedTuple):
    """Some samples of a work, in a batch."""

    work: Work
    first: int
    samples: Sequence[Sample]


@dataclass(eq=False)
class _Queue:
    """The works of a group that wait."""

    works: deque[Work] = field(default_factory=deque)
    num_turn_tokens: int = 0
    """What is computed before a new work has its first turn: of each work no more than a batch."""


_MEASURED_BATCHES = 8
"""The last ones, whose seconds say how long a batch takes."""


class Batcher:
    """The computing threads of a device, for all models on it."""

    def __init__(
        self,
        batch_tokens: int,
        max_wait_s: float,
        max_queue_tokens: int,
        max_queue_s: float = math.inf,
        count_batch: Callable[[Hashable, int, float], None] = lambda group, tokens, seconds: None,
        num_threads: int = 1,
        num_cores: int | None = None,
    ) -> None:
        """`count_batch` is told of every batch: its group, tokens and seconds. Each of the threads has `num_cores`."""
        self.batch_tokens = batch_tokens
        self._max_wait_s = max_wait_s
        self._max_queue_tokens = max_queue_tokens
        self._max_queue_s = max_queue_s
        self._batch_seconds: deque[float] = deque(maxlen=_MEASURED_BATCHES)
        self._count_batch = count_batch
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._more = threading.Condition(self._lock)
        self._groups: OrderedDict[Hashable, _Queue] = OrderedDict()
        self._num_waiting_tokens = 0
        self._num_coming = 0
        self._num_hesitating = 0
        self._is_closed = False
        self._num_cores = num_cores
        self._threads = [
            threading.Thread(target=self._compute_all, name="batches", daemon=True) for _ in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def num_waiting_tokens(self) -> int:
        return self._num_waiting_tokens

    def count_waiting(self, is_counted: Callable[[Hashable], bool]) -> int:
        """Samples that wait, of the groups that are counted."""
        with self._changed:
            queues = [queue for group, queue in self._groups.items() if is_counted(group)]
            return sum(work.num_left for queue in queues for work in queue.works)

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
                self._more.notify_all()

    def put(self, work: Work) -> None:
        """Refuses the work if too much is waiting."""
        with self._changed:
            if self._is_closed:
                raise Refusal(503, "the server is stopping; send the request to another one")
            waiting = self._num_waiting_tokens
            if waiting and waiting + work.num_tokens > self._max_queue_tokens:
                raise Refusal(429, f"{waiting:,} tokens wait to be computed; send the request again later", 1)
            self._num_waiting_tokens += work.num_tokens
            queue = self._groups.setdefault(work.group, _Queue())
            work.waits_since_s = time.monotonic()
            queue.works.append(work)
            queue.num_turn_tokens += self._count_turn(work)
            # a thread whose batch has room takes it; waking another one would make two small batches
            (self._more if self._num_hesitating else self._changed).notify()

    def refuse_late(self, group: Hashable) -> None:
        """Refuses a request of the group that is still to be prepared, if its first turn would come too late."""
        with self._changed:
            wait_s = self._expect_wait_s(group)
        if wait_s > self._max_queue_s:
            raise Refusal(
                429,
                f"a request would wait {wait_s:.1f} s, and {self._max_queue_s:g} s are allowed; send it again later",
                math.ceil(wait_s),
            )

    def _expect_wait_s(self, group: Hashable) -> float:
        """Until the first turn of a new request of the group: no less than the next one of it has waited already."""
        if group not in self._groups:
            return 0.0
        queue = self._groups[group]
        num_tokens = min(
            queue.num_turn_tokens * len(self._groups), sum(one.num_turn_tokens for one in self._groups.values())
        )
        batch_s = sum(self._batch_seconds) / max(len(self._batch_seconds), 1)
        waited_s = time.monotonic() - queue.works[0].waits_since_s
        return max(num_tokens / self.batch_tokens * batch_s / len(self._threads), waited_s)

    def _count_turn(self, work: Work) -> int:
        return min(work.num_left_tokens, self.batch_tokens)

    def close(self) -> None:
        """Computes what waits, and ends."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            self._more.notify_all()
        for thread in self._threads:
            thread.join()

    def _compute_all(self) -> None:
        if self._num_cores is not None:
            torch.set_num_threads(self._num_cores)  # of this thread's work alone
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
                batch_s = time.perf_counter() - begun_s
                with self._changed:
                    self._batch_seconds.append(batch_s)
                num_tokens = sum(_count_tokens(part.samples) for part in parts)
                self._count_batch(parts[0].work.group, num_tokens, batch_s)

    def _wait_for_more(self) -> None:
        """While another request is being prepared and there is room for it."""
        until_s = time.monotonic() + self._max_wait_s
        self._num_hesitating += 1
        while self._num_coming and self._num_waiting_tokens < self.batch_tokens and not self._is_closed:
            left_s = until_s - time.monotonic()
            if left_s <= 0 or not self._more.wait(left_s):
                break
        self._num_hesitating -= 1

    def _take(self) -> list[Part]:
        """A batch of the group whose turn it is, which then goes behind the others."""
        if not self._groups:  # another thread took what was there
            return []
        group, queue = self._groups.popitem(last=False)
        works = queue.works
        parts: list[Part] = []
        room = self.batch_tokens
        while works and room > 0:
            work = works.popleft()
            queue.num_turn_tokens -= self._count_turn(work)
            if work.is_dropped or work.error is not None:
                self._num_waiting_tokens -= work.num_left_tokens
                continue
            part = _take_part(work, room, may_exceed=not parts)
            if part.samples:
                num_tokens = _count_tokens(part.samples)
                parts.append(part)
                work.num_taken += len(part.samples)
                work.num_left_tokens -= num_tokens
                self._num_waiting_tokens -= num_tokens
                room -= num_tokens
            if work.num_left:
                # the rest of one that is larger than a batch waits for the others; any other is the next
                is_larger = bool(part.samples) and work.num_tokens > self.batch_tokens
                if is_larger:
                    work.waits_since_s = time.monotonic()
                    works.append(work)
                else:
                    works.appendleft(work)
                queue.num_turn_tokens += self._count_turn(work)
                break
        if works:
            self._groups[group] = queue
        if self._groups:
            self._changed.notify()
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
            self._fail(parts[0].work, error)
            return
        for part in parts:
            self._keep(part, [results.popleft() for _ in part.samples])

    def _keep(self, part: Part, results: list[Any]) -> None:
        work = part.work
        with self._changed:
            work.results[part.first : part.first + len(results)] = results
            work.num_computed += len(results)
            is_done = work.num_computed == len(work.samples) and work.error is None
        if is_done:
            work.finish(work)

    def _fail(self, work: Work, error: Exception) -> None:
        """What is left of the work is dropped when its turn comes."""
        with self._changed:
            is_first = work.error is None
            work.error = error if is_first else work.error
        if is_first:
            work.finish(work)


def _take_part(work: Work, room: int, may_exceed: bool) -> Part:
    """The next samples that fit; one that fits no batch has a batch of its own."""
    first = stop = work.num_taken
    while stop < len(work.samples) and (len(work.samples[stop].ids) <= room or (may_exceed and stop == first)):
        room -= len(work.samples[stop].ids)
        stop += 1
    return Part(work, first, work.samples[first:stop])


def _count_tokens(samples: Sequence[Sample]) -> int:
    return sum(len(sample.ids) for sample in samples)
