"""Many requests at once: the answers of each alone, turns, failures of one, and what waits has a limit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from running import PATIENCE_S, Running

from maskwright.inference.layout import EncodedBatch, Reduction, Sample
from maskwright.inference.pipeline import Pipeline, pipeline
from maskwright.inference.runner import Kind, Name, Prepared
from maskwright.models.products import IS_ROW_INVARIANT
from maskwright.serving.batching import Batcher, Work
from maskwright.serving.refusals import Refusal

ENDINGS = ["", " in the morning", " before it rains", " with great care and the quiet river" * 3]


class _Gate(Kind[str, int]):
    """Computes when it is let, and remembers its batches; a sample of id 13 cannot be computed."""

    def __init__(self) -> None:
        self.encoder = torch.nn.Embedding(100, 4)
        self.pad_token_id = 0
        self.is_open = threading.Event()
        self.has_begun = threading.Event()
        self.batches: list[list[int]] = []

    def find_causal(self, batch: Any) -> None:
        self.has_begun.set()
        assert self.is_open.wait(PATIENCE_S)

    def reduce(self, batch: EncodedBatch[Sample]) -> Reduction:
        first = [int(sample.ids[0]) for sample in batch.samples]
        if 13 in first:
            raise ValueError("13 cannot be computed")
        self.batches.append(first)
        return Reduction((), lambda: first)

    def prepare(self, items: Any, name: Name) -> list[Prepared]:
        raise NotImplementedError

    def answer(self, prepared: Any, reduced: Any) -> int:
        raise NotImplementedError

    @property
    def example(self) -> dict[str, Any]:
        raise NotImplementedError

    def describe_answer(self, answer: int) -> dict[str, Any]:
        raise NotImplementedError

    def as_items(self, inputs: Any) -> tuple[list[str], bool]:
        raise NotImplementedError


class _Desk:
    """A batcher of 8 tokens that computes on a gate."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **limits: Any) -> None:
        monkeypatch.setattr(
            "maskwright.inference.runner.encode", lambda encoder, batch, is_causal: encoder(batch.input_ids)
        )
        self.gate = _Gate()
        self.batcher = Batcher(**{"batch_tokens": 8, "max_wait_s": 0.0, "max_queue_tokens": 100, **limits})

    def put(self, number: int, num_samples: int = 1, group: str = "a", length: int = 4) -> tuple[Work, threading.Event]:
        done = threading.Event()
        samples = [Sample([number] * length) for _ in range(num_samples)]
        work = Work(self.gate, samples, group, lambda work: done.set())
        self.batcher.put(work)
        return work, done

    def hold(self) -> threading.Event:
        """A first request keeps the thread busy until the gate opens."""
        _, done = self.put(99)
        assert self.gate.has_begun.wait(PATIENCE_S)
        return done


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Desk]:
    one = _Desk(monkeypatch)
    yield one
    one.gate.is_open.set()
    one.batcher.close()


def test_what_waits_goes_into_full_batches(desk: _Desk) -> None:
    desk.hold()
    waiting = [desk.put(number) for number in range(1, 6)]
    desk.gate.is_open.set()
    assert all(done.wait(PATIENCE_S) for _, done in waiting)
    assert [sorted(batch) for batch in desk.gate.batches] == [[99], [1, 2], [3, 4], [5]]
    assert [work.results for work, _ in waiting] == [[1], [2], [3], [4], [5]]


def test_groups_take_turns_and_a_large_request_lets_others_pass(desk: _Desk) -> None:
    desk.hold()
    waiting = [desk.put(1, num_samples=6), desk.put(2), desk.put(3, group="b"), desk.put(4, group="b")]
    desk.gate.is_open.set()
    assert all(done.wait(PATIENCE_S) for _, done in waiting)
    assert [sorted(batch) for batch in desk.gate.batches] == [[99], [1, 1], [3, 4], [1, 2], [1, 1], [1]]
    assert [len(work.results) for work, _ in waiting] == [6, 1, 1, 1]


def test_what_did_not_fit_of_a_small_request_is_computed_next(desk: _Desk) -> None:
    desk.hold()
    waiting = [desk.put(number, num_samples=3, length=2) for number in range(1, 5)]  # 6 tokens each, 8 in a batch
    desk.gate.is_open.set()
    assert all(done.wait(PATIENCE_S) for _, done in waiting)
    assert [sorted(batch) for batch in desk.gate.batches] == [[99], [1, 1, 1, 2], [2, 2, 3, 3], [3, 4, 4, 4]]


def test_one_that_fails_does_not_fail_those_beside_it(desk: _Desk) -> None:
    desk.hold()
    waiting = [desk.put(13), desk.put(7)]
    desk.gate.is_open.set()
    assert all(done.wait(PATIENCE_S) for _, done in waiting)
    assert isinstance(waiting[0][0].error, ValueError)
    assert (waiting[1][0].error, waiting[1][0].results) == (None, [7])


def test_nothing_more_is_computed_of_a_large_request_that_failed(desk: _Desk) -> None:
    desk.hold()
    (work, done), (_, after) = desk.put(13, num_samples=6), desk.put(5)
    desk.gate.is_open.set()
    assert done.wait(PATIENCE_S)
    assert after.wait(PATIENCE_S)
    assert isinstance(work.error, ValueError)
    assert desk.batcher.num_waiting_tokens == 0
    assert desk.gate.batches == [[99], [5]]


def test_a_request_that_nobody_waits_for_is_not_computed(desk: _Desk) -> None:
    desk.hold()
    (gone, _), (_, done) = desk.put(1), desk.put(2)
    gone.is_dropped = True
    desk.gate.is_open.set()
    assert done.wait(PATIENCE_S)
    assert desk.gate.batches == [[99], [2]]
    assert desk.batcher.num_waiting_tokens == 0


def test_a_full_queue_refuses_and_a_single_request_is_always_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = _Desk(monkeypatch, max_queue_tokens=10)
    desk.hold()
    _, done = desk.put(1, num_samples=5)
    with pytest.raises(Refusal, match="20 tokens wait") as refused:
        desk.put(2)
    assert (refused.value.status, refused.value.retry_after_s) == (429, 1)
    desk.gate.is_open.set()
    desk.batcher.close()
    assert done.is_set()


class _Clock:
    """Goes on when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr("maskwright.serving.batching.time", self)

    def monotonic(self) -> float:
        return self.now_s

    perf_counter = monotonic


def _hold_after_slow_batch(desk: _Desk, clock: _Clock) -> None:
    """A first batch takes a second, and another one waits at the gate."""
    done = desk.hold()
    clock.now_s += 1
    desk.gate.is_open.set()
    assert done.wait(PATIENCE_S)
    desk.gate.is_open.clear()
    desk.gate.has_begun.clear()
    desk.hold()


def test_a_request_whose_turn_would_come_too_late_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock(monkeypatch)
    desk = _Desk(monkeypatch, max_queue_s=1.5)
    _hold_after_slow_batch(desk, clock)
    desk.put(1, num_samples=2)
    desk.batcher.refuse_late("a")
    desk.put(2, num_samples=2)
    with pytest.raises(Refusal, match=r"would wait 2\.0 s, and 1\.5 s are allowed") as refused:
        desk.batcher.refuse_late("a")
    assert (refused.value.status, refused.value.retry_after_s) == (429, 2)
    desk.batcher.refuse_late("b")  # has its turn after a batch of the others
    desk.gate.is_open.set()
    desk.batcher.close()
    desk.batcher.refuse_late("a")


def test_while_a_batch_takes_too_long_no_more_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock(monkeypatch)
    desk = _Desk(monkeypatch, max_queue_s=1.5)
    desk.hold()
    _, done = desk.put(1)
    desk.batcher.refuse_late("a")
    clock.now_s += 2
    with pytest.raises(Refusal, match=r"would wait 2\.0 s"):
        desk.batcher.refuse_late("a")
    desk.gate.is_open.set()
    assert done.wait(PATIENCE_S)
    desk.batcher.refuse_late("a")
    desk.batcher.close()


def test_a_large_request_keeps_others_waiting_for_no_more_than_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock(monkeypatch)
    desk = _Desk(monkeypatch, max_queue_s=1.5, max_queue_tokens=1_000)
    _hold_after_slow_batch(desk, clock)
    _, done = desk.put(1, num_samples=50)  # 25 batches
    desk.batcher.refuse_late("a")
    desk.gate.is_open.set()
    assert done.wait(PATIENCE_S)
    desk.batcher.close()


def test_closing_computes_what_waits_and_takes_no_more(desk: _Desk) -> None:
    desk.hold()
    _, done = desk.put(1, num_samples=7)
    desk.gate.is_open.set()
    desk.batcher.close()
    assert done.is_set()
    with pytest.raises(Refusal, match="stopping"):
        desk.put(2)


def test_a_batch_with_room_waits_for_a_request_that_is_being_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = _Desk(monkeypatch, max_wait_s=PATIENCE_S)
    desk.gate.is_open.set()
    with desk.batcher.expecting():
        first, second = desk.put(1), desk.put(2)
    desk.batcher.close()
    assert first[1].is_set()
    assert second[1].is_set()
    assert desk.gate.batches == [[1, 2]]


def _ask(server: Running, pipe: Pipeline[Any, Any], number: int) -> bool:
    """Whether a request at the same time as others has the bits of the pipeline alone."""
    texts = [f"the cat number {number}{ENDINGS[(number + place) % 4]}." for place in range(1 + number % 3)]
    found = server.ask("/api/embed", inputs=texts, model="language")["embeddings"]
    alone = [pipe(text) for text in texts]
    return all(np.array_equal(np.float32(one), two) for one, two in zip(found, alone, strict=True))


@pytest.mark.skipif(not IS_ROW_INVARIANT, reason="promised for x86 CPUs")
def test_answers_are_the_same_to_the_bit_however_requests_are_batched(
    server: Running, model_folders: dict[str, Path]
) -> None:
    pipe = pipeline("embed", model_folders["language"], device="cpu")
    with ThreadPoolExecutor(8) as clients:
        are_same = list(clients.map(lambda number: _ask(server, pipe, number), range(60)))
    assert are_same == [True] * 60


def test_every_request_gets_its_own_answer_among_many_kinds(server: Running, sentences: list[str]) -> None:
    def ask(number: int) -> bool:
        text = sentences[number]
        match number % 3:
            case 0:
                answer = server.ask("/fill-mask", inputs=f"{text} [MASK]", top_k=1 + number % 2)
                return len(answer) == 1 + number % 2 and answer[0]["sequence"].startswith(text.removesuffix("."))
            case 1:
                answer = server.ask("/zero-shot", inputs=text, labels=["a", f"b{number}"])
                return answer["sequence"] == text and f"b{number}" in answer["labels"]
            case _:
                return len(server.ask("/api/embed", inputs=[text] * number)["embeddings"]) == number

    with ThreadPoolExecutor(8) as clients:
        assert all(clients.map(ask, range(45)))
