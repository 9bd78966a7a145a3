"""`maskwright serve` as a process: what it prints, how it ends, and what it refuses before it begins."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prestarted import Prestarted
from running import PATIENCE_S

import maskwright as mw
from maskwright.serving.settings import ServeSettings

BODY = json.dumps({"inputs": "the [MASK] sees a road."}).encode()


class Process:
    """The command with any free port, once it has said where it answers."""

    def __init__(self, prestarted: Prestarted, said: Path, *words: object) -> None:
        command = ["serve", *map(str, words), "--port", "0", "--device", "cpu"]
        self.child = prestarted.start("prestarted:run_command", {"words": command}, said)
        self.lines: list[str] = []
        while not any(line.startswith("http://") for line in self.lines) and self.child.poll() is None:
            time.sleep(0.01)
            self.lines = [line for line in self.child.text().splitlines(keepends=True) if line.endswith("\n")]
        self.url = self.lines[-1].split()[0] if self.lines else ""

    def begin_request(self) -> socket.socket:
        """All of a request but the end of its body."""
        host, port = self.url.removeprefix("http://").split(":")
        connection = socket.create_connection((host, int(port)), PATIENCE_S)
        head = ["POST /fill-mask HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
        head += [f"Content-Length: {len(BODY)}", "", ""]
        connection.sendall("\r\n".join(head).encode() + BODY[:5])
        while self.read_metric("maskwright_requests_running") < 2:
            pass  # the other one is that for the figures
        return connection

    def read_metric(self, name: str) -> float:
        lines = httpx2.get(f"{self.url}/metrics", timeout=PATIENCE_S).text.splitlines()
        return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])

    def wait_until_closed(self) -> None:
        """Until no connection is taken any more."""
        while True:
            try:
                httpx2.get(f"{self.url}/health", timeout=PATIENCE_S)
            except httpx2.TransportError:
                return

    def is_running(self) -> bool:
        return self.child.poll() is None

    def wait(self) -> int:
        return self.child.wait(PATIENCE_S)


@pytest.fixture
def start(prestarted: Prestarted, tmp_path: Path) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def run(*words: object) -> Process:
        started.append(Process(prestarted, tmp_path / f"said-{len(started)}", *words))
        return started[-1]

    yield run
    for one in started:
        one.child.send(signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_ends_it_when_what_was_accepted_is_answered(
    start: Callable[..., Process], model_folders: dict[str, Path], number: int
) -> None:
    server = start(model_folders["language"], model_folders["entities"])
    assert [line.split(":")[0] for line in server.lines] == ["language", "entities", "http"]
    assert "fill-mask, embed, similarity" in server.lines[0]
    texts = ["the cat sees a long road before it rains and the quiet river"] * 1_000
    with server.begin_request() as connection, ThreadPoolExecutor(4) as clients:
        tokens_before = server.read_metric("maskwright_queue_tokens")
        large = [clients.submit(httpx2.post, f"{server.url}/embed", json={"inputs": texts}, timeout=PATIENCE_S)]
        while server.read_metric("maskwright_queue_tokens") == tokens_before and not large[0].done():
            pass
        server.child.send(number)
        server.wait_until_closed()
        assert server.is_running()
        connection.sendall(BODY[5:])
        answer = connection.recv(65_536)
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in answer
        assert len(large[0].result().json()) == 1_000
    assert server.wait() == 0
    assert server.child.err.read_text() == ""


def test_a_second_signal_ends_it_at_once(start: Callable[..., Process], model_folders: dict[str, Path]) -> None:
    server = start(model_folders["language"])
    with server.begin_request():
        server.child.send(signal.SIGTERM)
        server.wait_until_closed()
        assert server.is_running()
        server.child.send(signal.SIGTERM)
        assert server.wait() == 128 + signal.SIGTERM


@pytest.mark.slow
def test_idle_connections_do_not_keep_it(start: Callable[..., Process], model_folders: dict[str, Path]) -> None:
    server = start(model_folders["language"])
    with httpx2.Client(base_url=server.url, timeout=PATIENCE_S) as client:
        assert client.get("/ready").status_code == 200
        server.child.send(signal.SIGTERM)
        assert server.wait() == 0


def test_the_key_may_come_from_the_environment(
    command: Any, model_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[ServeSettings] = []
    monkeypatch.setattr("maskwright.serving.serve._serve", lambda sources, settings, *rest: given.append(settings))
    monkeypatch.setenv("MASKWRIGHT_API_KEY", "s3cret")
    assert command("serve", model_folders["language"]).code == 0
    mw.serve(model_folders["language"])
    assert [settings.api_key for settings in given] == ["s3cret", "s3cret"]
    assert "s3cret" not in repr(given)


@pytest.mark.parametrize(
    ("words", "is_warned"),
    [(["--host", "0.0.0.0"], True), (["--host", "0.0.0.0", "--api-key", "s3cret"], False), ([], False)],
)
def test_a_server_that_anyone_can_ask_says_so(
    command: Any, model_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, words: list[str], is_warned: bool
) -> None:
    monkeypatch.setattr("maskwright.serving.server.run_server", lambda *given: None)
    for verb in ("serve", "board"):
        err = command(verb, model_folders["language"], "--port", 0, *words).err
        warned = [line for line in err.splitlines() if line.startswith("warning: ")]
        assert ["without a key" in line and "MASKWRIGHT_API_KEY" in line for line in warned] == [True] * is_warned


def test_a_port_that_is_taken_is_said(command: Any, model_folders: dict[str, Path]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        command("serve", model_folders["language"], "--port", port).assert_refused(str(port), "--port")


def test_a_host_that_is_not_this_machines_is_said(command: Any, model_folders: dict[str, Path]) -> None:
    command("serve", model_folders["language"], "--host", "192.0.2.1", "--port", 0).assert_refused(
        "192.0.2.1", "--host"
    )


def test_a_model_that_is_not_there_is_said(command: Any, tmp_path: Path) -> None:
    command("serve", tmp_path / "none" / "model").assert_refused("no model folder at", "none")


def test_without_any_model_that_loads_there_is_no_server(command: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    result = command("serve", tmp_path, "--port", 0)
    assert result.code == 2
    assert "nothing could be loaded" in result.err


def test_without_a_model_the_quickstart_is_served_or_asked_for(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command("serve").assert_refused("runs/quickstart", "maskwright train")


def test_a_missing_package_is_named(
    command: Any, model_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maskwright.serving.serve.find_spec", lambda name: None if name == "orjson" else name)
    command("serve", model_folders["language"]).assert_refused("orjson", "pip install 'maskwright[serve]'")


def test_limits_are_checked_before_anything_is_loaded(command: Any, model_folders: dict[str, Path]) -> None:
    command("serve", model_folders["language"], "--max-texts", 0).assert_refused("--max-texts", "0")


def test_the_function_refuses_arguments_that_it_does_not_have() -> None:
    with pytest.raises(mw.InputError, match="serve has no argument 'prot'; did you mean 'port'"):
        mw.serve("runs/x", prot=1)  # type: ignore[call-arg]
