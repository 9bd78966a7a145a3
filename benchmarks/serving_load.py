"""Requests over HTTP as fast as one process can send them: closed loops, and rates that do not wait for answers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

HOST = "127.0.0.1"
LONGEST_S = 30.0
"""A request without an answer by then is an error."""


@dataclass
class Outcome:
    """What came of some requests. Seconds of a rate count from when a request was due."""

    asked_s: float
    seconds: list[float] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return len(self.seconds) / self.asked_s

    @property
    def num_errors(self) -> int:
        return sum(self.errors.values())

    def percentile_ms(self, share: float) -> float:
        return float(np.percentile(self.seconds, share) * 1e3) if self.seconds else float("inf")

    def add_error(self, name: str) -> None:
        self.errors[name] = self.errors.get(name, 0) + 1


class Client:
    """Connections that are kept open, to one address."""

    def __init__(self, port: int, path: str) -> None:
        self.port, self.path = port, path
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, body: bytes) -> tuple[int, bytes]:
        """Status and body. A connection that the server closed while it was idle is opened again, once."""
        for is_last in (False, True):
            is_new = is_last or not self._free
            reader, writer = await asyncio.open_connection(HOST, self.port) if is_new else self._free.pop()
            head = f"POST {self.path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
            try:
                writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                status, answer, is_kept = await _read(reader)
            except (ConnectionError, asyncio.IncompleteReadError):
                writer.close()
                if is_new or is_last:
                    raise
                continue
            except BaseException:
                writer.close()
                raise
            if is_kept:
                self._free.append((reader, writer))
            else:
                writer.close()
            return status, answer
        raise AssertionError

    def close(self) -> None:
        for _, writer in self._free:
            writer.close()
        self._free = []


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    status, answer, _ = await _read(reader)
    return status, answer


async def _read(reader: asyncio.StreamReader) -> tuple[int, bytes, bool]:
    """Status, body, and whether the connection is kept."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
    body = await reader.readexactly(int(length.split(b":")[1]))
    return int(head.split(None, 2)[1]), body, b"connection: close" not in head


Check = Callable[[int, bytes], str | None]
"""Of the number of a body and the answer: what is wrong with it."""


class Load:
    """Bodies one after another, from the beginning again at their end."""

    def __init__(self, client: Client, bodies: Sequence[bytes], check: Check | None = None) -> None:
        self._client, self._bodies, self._check = client, bodies, check
        self._next = 0

    async def _ask_one(self, outcome: Outcome, due_s: float) -> None:
        number = self._next % len(self._bodies)
        self._next += 1
        try:
            async with asyncio.timeout(LONGEST_S):
                status, answer = await self._client.ask(self._bodies[number])
        except (OSError, asyncio.IncompleteReadError) as error:
            names = {TimeoutError: "timeout", ConnectionRefusedError: "refused"}
            outcome.add_error(names.get(type(error), "connection"))
            return
        outcome_s = time.perf_counter() - due_s
        wrong = None if status != 200 or self._check is None else self._check(number, answer)
        if status == 200 and wrong is None:
            outcome.seconds.append(outcome_s)
        else:
            outcome.add_error(wrong or str(status))

    async def run_closed(self, num_clients: int, seconds: float) -> Outcome:
        """Each client asks again as soon as it is answered."""
        begun_s = time.perf_counter()
        outcome = Outcome(seconds)

        async def go() -> None:
            while time.perf_counter() - begun_s < seconds:
                await self._ask_one(outcome, time.perf_counter())

        await asyncio.gather(*(go() for _ in range(num_clients)))
        outcome.asked_s = time.perf_counter() - begun_s
        return outcome

    async def run_until(self, stop: asyncio.Event, num_clients: int) -> Outcome:
        """As `run_closed`, for as long as `stop` is not set."""
        begun_s = time.perf_counter()
        outcome = Outcome(0.0)

        async def go() -> None:
            while not stop.is_set():
                await self._ask_one(outcome, time.perf_counter())
                if "refused" in outcome.errors:  # it is gone, and does not answer more quickly when asked again
                    await asyncio.sleep(0.05)

        await asyncio.gather(*(go() for _ in range(num_clients)))
        outcome.asked_s = time.perf_counter() - begun_s
        return outcome

    async def run_open(self, rate: float, seconds: float, seed: int = 0) -> Outcome:
        """Requests come at random times, whether earlier ones are answered or not."""
        random = np.random.default_rng(seed)
        gaps = random.exponential(1 / rate, max(int(rate * seconds), 1))
        due = np.cumsum(gaps)
        outcome, tasks = Outcome(float(due[-1])), []
        begun_s = time.perf_counter()
        for at_s in due.tolist():
            wait_s = begun_s + at_s - time.perf_counter()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            tasks.append(asyncio.ensure_future(self._ask_one(outcome, begun_s + at_s)))
        await asyncio.gather(*tasks)
        return outcome


def write_bodies(texts: Sequence[str], model: str | None) -> list[bytes]:
    """A request for one text's vector, as OpenAI's route takes it."""
    named: dict[str, Any] = {} if model is None else {"model": model}
    return [json.dumps({"input": text, **named}).encode() for text in texts]


def read_vector(answer: bytes) -> np.ndarray[Any, Any]:
    return np.asarray(json.loads(answer)["data"][0]["embedding"], dtype=np.float32)
