"""Texts a second over HTTP, from one server of ours and from several, in requests of one text and of many."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from serving_sides import Server, Side, start, wait_until_ready

GENERATOR = Path(__file__).parent / "serving_generator.py"
WARM_UP_S = 2.0
START_S = 1.0
"""In which the processes of load read what they are to ask."""
TEXTS_AT_A_TIME = 4_096
FEWEST_CLIENTS, MOST_CLIENTS = 16, 128


def measure_bulk(side: Side, texts: list[str], arguments: argparse.Namespace) -> dict[str, Any]:
    """All servers are started at once; the first alone is asked, then all of them as behind a load balancer."""
    folder, rows = Path(arguments.logs), []
    with ExitStack() as stack:
        logs = [folder / f"{number}.log" for number in range(max(arguments.processes))]
        servers = [stack.enter_context(start(side, log)) for log in logs]
        for server, log in zip(servers, logs, strict=True):
            wait_until_ready(server, log)
        for size in arguments.bulk:
            ask(servers, write_requests(texts, size, "float", folder), size, WARM_UP_S, arguments.generators)
        print("servers  texts a request  encoding  connections    texts/s  requests/s   p50 ms   p99 ms  errors")
        for num_servers in arguments.processes:
            for size in arguments.bulk:
                for encoding in ("float", "base64") if size > 1 else ("float",):
                    bodies = write_requests(texts, size, encoding, folder)
                    row = ask(servers[:num_servers], bodies, size, arguments.seconds, arguments.generators)
                    rows.append({"servers": num_servers, "size": size, "encoding": encoding, **row})
                    show_row(rows[-1])
    return {"bulk": rows, "texts_per_s": max(row["texts_per_s"] for row in rows)}


def write_requests(texts: list[str], size: int, encoding: str, folder: Path) -> Path:
    path = folder / f"requests-{size}-{encoding}.json"
    firsts = range(0, len(texts) - size + 1, size)
    path.write_text(
        json.dumps([json.dumps({"input": texts[at : at + size], "encoding_format": encoding}) for at in firsts]),
        encoding="utf-8",
    )
    return path


def ask(servers: list[Server], bodies: Path, size: int, seconds: float, num_generators: int) -> dict[str, Any]:
    """What all processes of load count together."""
    num_clients = min(max(TEXTS_AT_A_TIME // size, FEWEST_CLIENTS), MOST_CLIENTS)
    common = {"ports": [server.port for server in servers], "path": servers[0].side.path, "bodies": str(bodies)}
    times = {"begin_s": time.time() + START_S, "seconds": seconds}
    generators = []
    for number in range(num_generators):
        asked = {**common, **times, "clients": list(range(number, num_clients, num_generators))}
        generator = subprocess.Popen([sys.executable, GENERATOR], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert generator.stdin is not None
        generator.stdin.write(json.dumps(asked).encode())
        generator.stdin.close()
        generators.append(generator)
    found: list[tuple[int, float, float]] = []
    for generator in generators:
        assert generator.stdout is not None
        found += json.load(generator.stdout)
        if generator.wait() != 0:
            raise SystemExit("a process of load failed")
    answered = [took_s for status, took_s, _ in found if status == 200]
    rate = len(answered) / max((came_s for _, _, came_s in found), default=1.0)
    p50_ms, p99_ms = (1e3 * np.percentile(answered, (50, 99))).tolist() if answered else (np.inf, np.inf)
    return {
        "clients": num_clients,
        "texts_per_s": size * rate,
        "requests_per_s": rate,
        "p50_ms": p50_ms,
        "p99_ms": p99_ms,
        "errors": len(found) - len(answered),
    }


def show_row(row: dict[str, Any]) -> None:
    print(
        f"{row['servers']:7}  {row['size']:15}  {row['encoding']:8}  {row['clients']:11}  {row['texts_per_s']:9.0f}"
        f"  {row['requests_per_s']:10.0f}  {row['p50_ms']:7.1f}  {row['p99_ms']:7.1f}  {row['errors']:6}",
        flush=True,
    )
