"""The servers that are measured: ours and its peers, each a process on a port of loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"
START_S = 600.0
PEER_SERVICE = Path(__file__).parent / "peers" / "embedding_service.py"


@dataclass(frozen=True)
class Side:
    name: str
    command: Sequence[str]
    """`PORT` stands for the port."""
    path: str = "/v1/embeddings"
    ready: str = "/health"
    names_model: bool = False


@dataclass
class Server:
    side: Side
    port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def read_cpu_s(self) -> float:
        """Seconds of cores that the process has used, where the system tells; of more use on a busy machine."""
        stat = Path(f"/proc/{self.process.pid}/stat")
        if not stat.exists():
            return 0.0
        fields = stat.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def list_sides(
    folder: Path, device: str, infinity: Path | None, peer_python: str, ours: Sequence[str], peer_dtype: str
) -> list[Side]:
    serve = [sys.executable, "-m", "maskwright", "serve", str(folder), "--port", "PORT", "--device", device, *ours]
    sides = [Side("maskwright", serve, ready="/ready")]
    if infinity is not None:
        command = [str(infinity / "bin" / "infinity_emb"), "v2", "--model-id", str(folder), "--port", "PORT"]
        command += ["--host", HOST, "--engine", "torch", "--device", device, "--dtype", peer_dtype]
        sides.append(Side("infinity-emb", [*command, "--no-bettertransformer"], "/embeddings", names_model=True))
    service = [peer_python, str(PEER_SERVICE), str(folder), "PORT", device, peer_dtype]
    sides.append(Side("sentence-transformers + FastAPI", service))
    return sides


@contextmanager
def running(side: Side, log: Path) -> Iterator[Server]:
    """The server, once it is ready; it is ended with the block."""
    with start(side, log) as server:
        wait_until_ready(server, log)
        yield server


@contextmanager
def start(side: Side, log: Path) -> Iterator[Server]:
    """The server, which may not be ready yet."""
    port = find_free_port()
    command = [str(port) if word == "PORT" else word for word in side.command]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "TOKENIZERS_PARALLELISM": "true"}
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment)
        try:
            yield Server(side, port, process)
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_until_ready(server: Server, log: Path) -> None:
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s:
        if server.process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(server.url + server.side.ready, timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.2)
    tail = log.read_text(errors="replace").splitlines()[-15:]
    raise SystemExit(f"{server.side.name} did not start:\n" + "\n".join(tail))


def find_free_port() -> int:
    with socket.create_server((HOST, 0)) as free:
        return int(free.getsockname()[1])
