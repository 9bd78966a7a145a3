"""What a server refuses, to whom and how: keys, hosts, sizes, times; clients that are slow or go away."""

from __future__ import annotations

import json
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from running import PATIENCE_S, Running, running

from maskwright.errors import InputError
from maskwright.inference.fill_mask import FillMask
from maskwright.serving import hub
from maskwright.serving.hub import ModelHub
from maskwright.serving.page import list_page_files
from maskwright.serving.settings import ServeSettings

ASKED = {"inputs": "the [MASK] sees a road."}


class Gate:
    """Holds what a model computes until it is opened, once `shut`."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.holds = threading.Event()
        self.num_computed = 0

    def install(self, hub: ModelHub) -> None:
        kind = hub.models["language"]._pipelines["fill-mask"].kind
        reduce = kind.reduce

        def wait(batch: Any) -> Any:
            if not self.open.is_set():
                self.holds.set()
            assert self.open.wait(PATIENCE_S)
            self.num_computed += len(batch.samples)
            return reduce(batch)

        kind.reduce = wait  # type: ignore[method-assign]


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """With one batch at a time, whatever the number of cores: what waits behind the gate was not taken."""
    monkeypatch.setattr(hub, "_MAX_CPU_THREADS", 1)
    one = Gate()
    yield one
    one.open.set()


def wait_until(is_so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def open_connection(server: Running, content: bytes) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), PATIENCE_S)
    connection.sendall(content)
    return connection


def write_request(body: bytes, said: int | None = None, host: str = "localhost") -> bytes:
    length = len(body) if said is None else said
    lines = ["POST /fill-mask HTTP/1.1", f"Host: {host}", "Content-Type: application/json", f"Content-Length: {length}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


def read_status(connection: socket.socket) -> int:
    return int(connection.recv(65_536).split()[1])


def test_a_key_is_asked_for_where_there_is_one(model_folders: dict[str, Path]) -> None:
    with running([model_folders["language"]], api_key="s3cret") as server:
        for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic s3cret"}, {"Authorization": "é"}):
            headers = {name: value.encode() for name, value in given.items()}
            response = server.client.post("/fill-mask", json=ASKED, headers=headers)
            assert (response.status_code, response.json()["error"]["type"]) == (401, "unauthorized")
            assert response.headers["WWW-Authenticate"] == "Bearer"
        right = {"Authorization": "Bearer s3cret"}
        assert server.client.post("/fill-mask", json=ASKED, headers=right).status_code == 200
        assert server.client.get("/api/models", headers=right).json()["needs_key"] is True
        assert [server.client.get(path).status_code for path in ("/health", "/ready")] == [200, 200]
        closed = ("/metrics", "/api/models", "/v1/models", "/openapi.json", "/info")
        assert [server.client.get(path).status_code for path in closed] == [401] * len(closed)
        assert [server.client.get(path).status_code for path in ("/", "/docs", "/static/docs.js")] == [200] * 3
        assert server.client.post("/", json=ASKED).status_code == 401


def test_pages_load_nothing_from_another_host(server: Running) -> None:
    for name in list_page_files():
        response = server.client.get(f"/static/{name}")
        assert response.headers["Content-Security-Policy"].startswith("default-src 'self'")
        loaded = re.findall(r"""(?:src|href)=["'](?!/|#|data:)[^"']*|(?:import|url\()[^;\n]*//[^;\n]*""", response.text)
        assert loaded == [], name
    page = server.client.get("/docs").text
    for path in re.findall(r'(?:src|href)="(/static/[^"]+)"', page):
        assert server.client.get(path).status_code == 200


def test_only_this_machines_names_are_answered_on_loopback(server: Running) -> None:
    body = json.dumps(ASKED).encode()
    port = server.url.rpartition(":")[2]
    for host, status in {
        "evil.example": 403,
        f"evil.example:{port}": 403,
        f"127.0.0.1:{port}": 200,
        "[::1]": 200,
    }.items():
        with open_connection(server, write_request(body, host=host)) as connection:
            assert read_status(connection) == status


def test_pages_of_others_may_read_answers_only_where_named(server: Running, model_folders: dict[str, Path]) -> None:
    origin = {"Origin": "https://app.example"}
    assert "access-control-allow-origin" not in server.client.post("/fill-mask", json=ASKED, headers=origin).headers
    with running([model_folders["language"]], cors=("https://app.example",)) as named:
        asked = named.client.post("/fill-mask", json=ASKED, headers=origin)
        assert asked.headers["access-control-allow-origin"] == "https://app.example"
        other = named.client.post("/fill-mask", json=ASKED, headers={"Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers


def test_sizes_have_limits(model_folders: dict[str, Path]) -> None:
    limits = {"max_body_mb": 0.01, "max_texts": 3, "max_request_tokens": 30}
    with running([model_folders["language"], model_folders["inference"]], **limits) as server:
        assert "0.01 MB" in server.refuse("/fill-mask", 413, {"inputs": "[MASK]" * 10_000})
        assert "4 texts" in server.refuse("/api/embed", 422, {"inputs": ["a"] * 4})
        assert "4 texts" in server.refuse("/zero-shot", 422, {"inputs": ["a", "b"], "labels": ["c", "d"]})
        assert "30 are allowed" in server.refuse("/api/embed", 422, {"inputs": "the cat sees a road " * 10})
        assert "30 are allowed" in server.refuse("/embed", 422, {"inputs": [[7] * 31]})
        chunks = server.client.post("/fill-mask", content=iter([b"x" * 5_000] * 5))  # without a length
        assert chunks.status_code == 413
        assert server.ask("/fill-mask", **ASKED)


def test_too_many_requests_at_a_time_are_told_to_come_again(model_folders: dict[str, Path], gate: Gate) -> None:
    with (
        running([model_folders["language"]], gate.install, max_concurrent=2) as server,
        ThreadPoolExecutor(2) as clients,
    ):
        gate.open.clear()
        waiting = [clients.submit(server.ask, "/fill-mask", **ASKED) for _ in range(2)]
        wait_until(lambda: server.state.meter.num_running == 2)
        response = server.client.post("/fill-mask", json=ASKED)
        assert (response.status_code, response.headers["Retry-After"]) == (429, "1")
        assert response.json()["error"]["type"] == "overloaded"
        paths = ("/health", "/ready", "/metrics", "/api/stats")
        assert [server.client.get(path).status_code for path in paths] == [200] * 4
        gate.open.set()
        assert all(len(one.result()) == 5 for one in waiting)


def test_over_capacity_some_are_told_to_come_again_and_the_others_are_answered(
    model_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow_down(hub: ModelHub) -> None:
        kind = hub.models["language"]._pipelines["fill-mask"].kind
        reduce = kind.reduce

        def sleep_first(batch: Any) -> Any:
            time.sleep(0.05)
            return reduce(batch)

        kind.reduce = sleep_first  # type: ignore[method-assign]

    monkeypatch.setattr(hub, "_MAX_CPU_THREADS", 1)
    with (
        running([model_folders["language"]], slow_down, batch_tokens=1, max_queue_s=0.2) as server,
        ThreadPoolExecutor(16) as clients,
    ):
        answers = list(clients.map(lambda _: server.client.post("/fill-mask", json=ASKED), range(32)))
    refused = [one for one in answers if one.status_code == 429]
    assert {one.status_code for one in answers} == {200, 429}
    assert all(int(one.headers["Retry-After"]) >= 1 for one in refused)


def test_a_request_counts_no_longer_once_its_answer_is_sent(model_folders: dict[str, Path]) -> None:
    with running([model_folders["language"]], max_concurrent=1) as server:
        assert [server.client.post("/fill-mask", json=ASKED).status_code for _ in range(50)] == [200] * 50


def test_a_request_that_waits_too_long_is_refused_and_not_computed(model_folders: dict[str, Path], gate: Gate) -> None:
    with running([model_folders["language"]], gate.install, timeout_s=0.3) as server:
        computed = gate.num_computed
        gate.open.clear()
        response = server.client.post("/fill-mask", json=ASKED)
        assert (response.status_code, response.json()["error"]["type"]) == (503, "unavailable")
        with ThreadPoolExecutor(4) as clients:
            codes = list(clients.map(lambda _: server.client.post("/fill-mask", json=ASKED).status_code, range(4)))
        assert codes == [503] * 4
        gate.open.set()
        wait_until(lambda: server.state.hub.waiting == (0, 0))
        assert gate.num_computed <= computed + 1  # the one that the thread had taken


def test_a_client_that_goes_away_takes_its_request_along(model_folders: dict[str, Path], gate: Gate) -> None:
    with running([model_folders["language"]], gate.install) as server, ThreadPoolExecutor(1) as clients:
        computed = gate.num_computed
        gate.open.clear()
        first = clients.submit(server.ask, "/fill-mask", **ASKED)
        assert gate.holds.wait(PATIENCE_S)
        gone = [open_connection(server, write_request(json.dumps(ASKED).encode())) for _ in range(5)]
        wait_until(lambda: server.state.meter.num_running == 6)
        for connection in gone:
            connection.close()
        wait_until(lambda: server.state.meter.num_running == 1)
        gate.open.set()
        assert len(first.result()) == 5
        assert server.ask("/fill-mask", **ASKED)
        assert gate.num_computed == computed + 2
        assert server.state.hub.waiting == (0, 0)


@pytest.mark.parametrize("sent", [b"POST /fill-mask HTTP/1.1\r\nHost: localh", b"", write_request(b"{", said=100)])
def test_a_client_that_sends_too_slowly_is_let_go(model_folders: dict[str, Path], sent: bytes) -> None:
    with running([model_folders["language"]], read_timeout_s=0.3) as server:
        with open_connection(server, sent) as connection:
            try:
                answer = connection.recv(65_536)
            except ConnectionResetError:
                answer = b""
        assert answer == b"" or answer.split()[1] == b"408"
        assert (answer != b"") == sent.endswith(b"{")


def test_what_is_no_http_gets_an_answer_and_nothing_else_happens(server: Running) -> None:
    with open_connection(server, b"\x00\x01garbage\r\n\r\n") as connection:
        assert read_status(connection) == 400
    assert server.ask("/fill-mask", **ASKED)


def test_a_model_out_of_memory_leaves_the_others(
    model_folders: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    def break_one(hub: ModelHub) -> None:
        def fail(batch: Any) -> Any:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 10 bytes")

        hub.models["entities"]._pipelines["ner"].kind.reduce = fail  # type: ignore[method-assign]

    with running([model_folders["language"], model_folders["entities"]], break_one) as server:
        assert "out of memory" in server.refuse("/ner", 500, {"inputs": "the cat"})
        assert server.ask("/fill-mask", **ASKED)
    assert "the cat" not in caplog.text


def test_no_text_of_a_request_is_logged_or_shown(
    model_folders: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def fail(*given: Any) -> Any:
        raise KeyError("the secret text")

    def break_it(hub: ModelHub) -> None:
        monkeypatch.setattr(FillMask, "answer_all", fail)

    caplog.set_level(logging.DEBUG)
    with running([model_folders["language"]], break_it) as server:
        sentence = server.refuse("/fill-mask", 500, {"inputs": "the secret [MASK]"})
        assert "KeyError" in sentence
        server.refuse("/fill-mask", 422, {"inputs": "another secret"})
    printed = capfd.readouterr()
    assert "KeyError in fail" in caplog.text
    assert "secret" not in caplog.text + printed.out + printed.err


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", 70_000),
        ("max_texts", 0),
        ("max_body_mb", 0),
        ("max_queue_s", 0),
        ("timeout_s", -1),
        ("max_wait_ms", -1),
        ("api_key", ""),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=name):
        ServeSettings(**{name: value})
