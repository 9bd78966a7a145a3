"""A server on a free port of loopback, in threads of this process."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from maskwright.serving.app import build_app
from maskwright.serving.board import add_board
from maskwright.serving.hub import ModelHub
from maskwright.serving.metrics import ServerMeter
from maskwright.serving.search import AskedIndex
from maskwright.serving.server import name_url, open_socket, run_server
from maskwright.serving.settings import ServeSettings
from maskwright.serving.state import ServerState

PATIENCE_S = 120.0


@dataclass
class Running:
    url: str
    client: httpx2.Client
    state: ServerState

    def ask(self, path: str, **body: Any) -> Any:
        """The JSON of an answer that must be one."""
        response = self.client.post(path, json=body)
        assert response.status_code == 200, response.text
        return response.json()

    def refuse(self, path: str, status: int, body: Mapping[str, Any]) -> str:
        """The sentence of a refusal, which must come with this status."""
        content = json.dumps(body).encode()  # half characters too, as JSON writes them
        response = self.client.post(path, content=content, headers={"Content-Type": "application/json"})
        assert response.status_code == status, response.text
        error = response.json()["error"]
        return str(error["message"] if isinstance(error, dict) else error)


@contextmanager
def running(
    sources: list[Path],
    prepare: Callable[[ModelHub], None] = lambda hub: None,
    board: Path | None = None,
    indexes: Sequence[AskedIndex] = (),
    **settings: Any,
) -> Iterator[Running]:
    """A server with these models, loaded; `prepare` may change them before the first request. `board` is for runs."""
    chosen = ServeSettings(port=0, **settings)
    listener = open_socket(chosen.host, chosen.port, chosen.read_timeout_s)
    threads, meter = ThreadPoolExecutor(2), ServerMeter()
    hub = ModelHub(sources, chosen, threads, meter, device="cpu", indexes=indexes)
    hub.load_all()
    prepare(hub)
    state = ServerState(hub, chosen, meter)
    stops: list[Callable[[], None]] = []
    begun = threading.Event()

    def load(stop: Callable[[], None]) -> None:
        stops.append(stop)
        begun.set()

    app = build_app(state)
    if board is not None:
        add_board(app, board)
    thread = threading.Thread(target=run_server, args=(app, state, listener, load))
    thread.start()
    try:
        assert begun.wait(PATIENCE_S)
        url = name_url(listener, chosen.host)
        with httpx2.Client(base_url=url, timeout=PATIENCE_S) as client:
            yield Running(url, client, state)
    finally:
        stops[0]()
        thread.join(PATIENCE_S)
        hub.close()
        threads.shutdown()
    assert not thread.is_alive()
