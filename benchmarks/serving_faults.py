"""Faults of clients and of the machine, while other clients ask and compare every answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from serving_load import HOST, LONGEST_S, Client, Load, Outcome, read_answer, read_vector, write_bodies
from serving_sides import Server, Side, running

NUM_TRIALS = 40
NUM_CLIENTS = 4
READ_TIMEOUT_S = 2.0
SHORTAGE_TOKENS = 200
CLOSENESS = 1e-4
"""Of numbers of a vector of length 1, computed in batches of other sizes in fp32."""
SHORTAGE = Path(__file__).parent / "serving_shortage.py"


async def open_request(server: Server, body: bytes, length: int | None = None) -> tuple[Any, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(HOST, server.port)
    head = f"POST {server.side.path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body) if length is None else length}\r\n\r\n".encode() + body)
    await writer.drain()
    return reader, writer


async def ask_once(server: Server, body: bytes, length: int | None = None) -> int:
    reader, writer = await open_request(server, body, length)
    async with asyncio.timeout(LONGEST_S):
        status, answer = await read_answer(reader)
    writer.close()
    if status != 200:
        json.loads(answer)["error"]["message"]
    return status


async def kill_clients(server: Server, bodies: Sequence[bytes]) -> str:
    for body in bodies[:NUM_TRIALS]:
        _, writer = await open_request(server, body)
        writer.transport.abort()
    return "gone before the answer"


async def kill_in_body(server: Server, bodies: Sequence[bytes]) -> str:
    for body in bodies[:NUM_TRIALS]:
        _, writer = await open_request(server, body[:10], len(body))
        writer.transport.abort()
    return "gone within the body"


async def send_too_much(server: Server, bodies: Sequence[bytes]) -> str:
    codes = [await ask_once(server, b"{", 10**9) for _ in range(NUM_TRIALS)]
    assert set(codes) == {413}, codes
    return "413 each"


async def send_garbage(server: Server, bodies: Sequence[bytes]) -> str:
    random.seed(0)
    codes = [await ask_once(server, damage(body)) for body in bodies[:NUM_TRIALS]]
    assert set(codes) <= {400, 422}, codes
    return "400 or 422 each, with a sentence"


def damage(body: bytes) -> bytes:
    """Cut, with a byte that no text has, or of another type."""
    place = random.randrange(1, len(body) - 2)
    return random.choice([body[:place], body[:place] + b"\xff" + body[place:], b"[" + body, b'{"input": {"a": 1}}'])


async def send_slowly(server: Server, bodies: Sequence[bytes]) -> str:
    opened = [await open_request(server, body[:10], len(body)) for body in bodies[: NUM_TRIALS // 2]]
    for _ in range(NUM_TRIALS // 2):
        reader, writer = await asyncio.open_connection(HOST, server.port)
        writer.write(b"POST /embed HTTP/1.1\r\nHost: loc")
        opened.append((reader, writer))
    async with asyncio.timeout(LONGEST_S):
        for reader, writer in opened:
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()
    return f"let go after {READ_TIMEOUT_S:g} s"


async def read_nothing(server: Server, bodies: Sequence[bytes]) -> str:
    """Answers of many megabytes that nobody reads; the system ends such connections."""
    texts = json.dumps({"input": ["a"] * 2_000}).encode()
    opened = [await open_request(server, texts) for _ in range(4)]
    for reader, _ in opened:
        reader._transport.pause_reading()
    await asyncio.sleep(3 * READ_TIMEOUT_S)
    for _, writer in opened:
        writer.transport.abort()
    return "the others are answered meanwhile"


async def run_short_of_memory(server: Server, bodies: Sequence[bytes]) -> str:
    body = json.dumps({"input": "word " * (2 * SHORTAGE_TOKENS)}).encode()
    codes = [await ask_once(server, body) for _ in range(NUM_TRIALS // 4)]
    assert set(codes) == {500}, codes
    return "500 with a sentence for it alone"


Fault = Callable[[Server, Sequence[bytes]], Awaitable[str]]
FAULTS: dict[str, Fault] = {
    "killed client": kill_clients,
    "client killed in the body": kill_in_body,
    "oversize body": send_too_much,
    "garbage in place of JSON": send_garbage,
    "slow headers and bodies": send_slowly,
    "answers that nobody reads": read_nothing,
    "out of memory": run_short_of_memory,
}


class Checked:
    """A load whose every answer is compared with that to its text alone."""

    def __init__(self, server: Server, bodies: Sequence[bytes]) -> None:
        self._client = Client(server.port, server.side.path)
        self._bodies = bodies
        self._expected: list[np.ndarray[Any, Any]] = []

    async def prepare(self) -> None:
        for body in self._bodies:
            self._expected.append(read_vector((await self._client.ask(body))[1]))

    async def run(self, stop: asyncio.Event) -> Outcome:
        load = Load(self._client, self._bodies, self._check)
        return await load.run_until(stop, NUM_CLIENTS)

    def _check(self, number: int, answer: bytes) -> str | None:
        return None if np.abs(read_vector(answer) - self._expected[number]).max() < CLOSENESS else "wrong"


async def try_all(server: Server, bodies: list[bytes]) -> list[dict[str, Any]]:
    checked = Checked(server, bodies)
    await checked.prepare()
    rows = []
    for name, fault in FAULTS.items():
        stop = asyncio.Event()
        beside = asyncio.ensure_future(checked.run(stop))
        try:
            seen = await fault(server, bodies)
        finally:
            stop.set()
            outcome = await beside
        rows.append(write_row(name, seen, outcome))
    return [*rows, await terminate(server, checked)]


async def terminate(server: Server, checked: Checked) -> dict[str, Any]:
    """Those that the closed port refuses were not accepted; all others must have their answer."""
    stop = asyncio.Event()
    beside = asyncio.ensure_future(checked.run(stop))
    await asyncio.sleep(2)
    server.process.send_signal(signal.SIGTERM)
    code = await asyncio.to_thread(server.process.wait, LONGEST_S)
    stop.set()
    outcome = await beside
    refused = outcome.errors.pop("refused", 0)
    return write_row("SIGTERM under load", f"exit {code}, {refused} found the port closed", outcome, code != 0)


def write_row(name: str, seen: str, outcome: Outcome, is_bad: bool = False) -> dict[str, Any]:
    bad = outcome.num_errors + is_bad
    named = "".join(f", {count} x {error}" for error, count in outcome.errors.items())
    print(f"{name:<27} {seen:<45} {len(outcome.seconds):6} answered beside it, {bad} wrong or lost{named}", flush=True)
    return {"fault": name, "seen": seen, "answered": len(outcome.seconds), "bad": bad, "errors": outcome.errors}


def run_faults(side: Side, texts: Sequence[str], folder: Path) -> dict[str, Any]:
    """Prints a line for each fault; all of one server, which must not end before it is asked to."""
    words = [sys.executable, str(SHORTAGE), str(SHORTAGE_TOKENS), *side.command[3:]]
    words += ["--read-timeout-s", str(READ_TIMEOUT_S)]
    short = [text for text in texts if len(text.split()) < SHORTAGE_TOKENS // 4][:100]
    with running(replace(side, command=words), folder / "faults.log") as server:
        rows = asyncio.run(try_all(server, write_bodies(short, None)))
    bad = sum(row["bad"] for row in rows)
    print(f"wrong or lost answers {bad}")
    return {"faults": rows, "wrong_or_lost": bad}
