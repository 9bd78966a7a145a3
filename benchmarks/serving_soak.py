"""Load over a long time: every answer compared, and what the server's own figures say of each half minute."""

from __future__ import annotations

import asyncio
import contextlib
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from serving_load import Client, Load, Outcome, read_vector, write_bodies
from serving_sides import Server

CALIBRATION_CLIENTS = 32
CALIBRATION_S = 10.0
PART_S = 30.0
LOOK_S = 1.0
CLOSENESS = 1e-4
"""Of numbers of a vector of length 1, computed in batches of other sizes in fp32."""
REFUSALS = ("429", "503")


@dataclass
class Figures:
    """Of /metrics, summed over labels, with the processor time of the server and of the whole machine."""

    values: dict[str, float]
    server_s: float
    machine_s: float

    def __getitem__(self, name: str) -> float:
        return self.values.get(f"maskwright_{name}", 0.0)


@dataclass
class Watch:
    """Looks at the server's figures every second."""

    server: Server
    queues: list[float] = field(default_factory=list)

    async def run(self) -> None:
        while True:
            self.queues.append((await asyncio.to_thread(read_figures, self.server))["queue_samples"])
            await asyncio.sleep(LOOK_S)


def read_figures(server: Server) -> Figures:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as response:
        lines = response.read().decode().splitlines()
    values: dict[str, float] = {}
    for line in lines:
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            name = name.partition("{")[0]
            values[name] = values.get(name, 0.0) + float(value)
    return Figures(values, server.read_cpu_s(), read_machine_s())


def read_machine_s() -> float:
    """Processor seconds of all programs, where the system tells."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    user, nice, system = map(int, stat.read_text().split(None, 4)[1:4])
    return (user + nice + system) / 100


def describe_part(before: Figures, after: Figures, queues: list[float], outcome: Outcome) -> dict[str, Any]:
    def grown(name: str) -> float:
        return after[name] - before[name]

    seconds = max(outcome.asked_s, 1e-9)
    return {
        "rate": outcome.rate,
        "p50_ms": outcome.percentile_ms(50),
        "p99_ms": outcome.percentile_ms(99),
        "errors": outcome.errors,
        "queue": float(np.mean(queues)) if queues else 0.0,
        "longest_queue": max(queues, default=0.0),
        "batch_tokens": grown("batch_tokens_sum") / max(grown("batch_tokens_count"), 1.0),
        "batch_ms": 1e3 * grown("batch_seconds_sum") / max(grown("batch_seconds_count"), 1.0),
        "server_cores": (after.server_s - before.server_s) / seconds,
        "machine_cores": (after.machine_s - before.machine_s) / seconds,
        "memory_mib": after.values["process_resident_memory_bytes"] / 2**20,
    }


def show_part(row: dict[str, Any]) -> None:
    wrong = ", ".join(f"{count} x {name}" for name, count in row["errors"].items()) or "no errors"
    print(
        f"  {row['rate']:6.1f}/s, p50 {row['p50_ms']:6.1f} ms, p99 {row['p99_ms']:7.1f} ms,"
        f" queue {row['queue']:5.1f} (at most {row['longest_queue']:4.0f}), batch {row['batch_tokens']:5.0f} tokens in"
        f" {row['batch_ms']:6.1f} ms, cores: server {row['server_cores']:4.2f}, machine {row['machine_cores']:4.2f};"
        f" {row['memory_mib']:5.0f} MiB, {wrong}",
        flush=True,
    )


async def soak(server: Server, texts: list[str], minutes: float, share: float) -> dict[str, Any]:
    """At a share of what closed loops reach, every answer compared with that to its text alone."""
    client = Client(server.port, server.side.path)
    bodies = write_bodies(texts, None)
    expected = [read_vector((await client.ask(body))[1]) for body in bodies]

    def check(number: int, answer: bytes) -> str | None:
        return None if np.abs(read_vector(answer) - expected[number]).max() < CLOSENESS else "wrong"

    load = Load(client, bodies, check)
    capacity = (await load.run_closed(CALIBRATION_CLIENTS, CALIBRATION_S)).rate
    print(f"{minutes:g} minutes at {share * capacity:.0f} requests/s, {share:g} of {capacity:.0f}")
    rows: list[dict[str, Any]] = []
    until_s = time.monotonic() + 60 * minutes
    while time.monotonic() < until_s:
        before, watch = read_figures(server), Watch(server)
        watching = asyncio.ensure_future(watch.run())
        seconds = min(PART_S, max(until_s - time.monotonic(), 1.0))
        outcome = await load.run_open(share * capacity, seconds, seed=len(rows))
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
        rows.append(describe_part(before, read_figures(server), watch.queues, outcome))
        show_part(rows[-1])
    client.close()
    return summarize(rows, capacity, share)


def summarize(rows: list[dict[str, Any]], capacity: float, share: float) -> dict[str, Any]:
    errors: dict[str, int] = {}
    for row in rows:
        for name, count in row["errors"].items():
            errors[name] = errors.get(name, 0) + count
    refused = sum(errors.get(name, 0) for name in REFUSALS)
    lost = sum(errors.values()) - refused
    later = [row["memory_mib"] for row in rows[len(rows) // 3 :]]
    growth = later[-1] - later[0]
    slowest = max(row["p99_ms"] for row in rows)
    print(
        f"memory {later[0]:.0f} to {later[-1]:.0f} MiB ({growth:+.1f}); refused {refused:,}, lost or wrong {lost:,};"
        f" p99 of a half minute at most {slowest:.0f} ms"
    )
    figures = {"growth_mib": growth, "refused": refused, "lost": lost, "slowest_p99_ms": slowest}
    return {"capacity": capacity, "share": share, "parts": rows, **figures}
