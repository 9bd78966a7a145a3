"""A server of S3's protocol (moto's) for tests that fails on demand."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

BUCKET = "corpus"
_STALL_S = 8.0
SILENCE_S = 1.0
"""After which clients take a request for lost."""


@dataclass
class Faults:
    """What the next requests meet, one entry each: "500", "cut" (half of the content), "stall" (half, and then nothing
    for long) or "silence" (no answer for as long).
    """

    waiting: list[str] = field(default_factory=list)
    only: str = "GET"
    """The method that they are for."""
    num_requests: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, method: str) -> str | None:
        with self._lock:
            self.num_requests += 1
            return self.waiting.pop(0) if self.waiting and method == self.only else None

    def wrap(self, app: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
        def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            fault = self.take(environ["REQUEST_METHOD"])
            if fault == "500":
                start_response("500 Internal Server Error", [("Content-Length", "0")])
                return []
            if fault == "silence":
                time.sleep(_STALL_S)
                return []
            content = app(environ, start_response)
            return content if fault is None else _spoil(b"".join(content), fault)

        return answer


def _spoil(content: bytes, fault: str) -> Iterator[bytes]:
    """Less than the header of its length says."""
    yield content[: len(content) // 2]
    if fault == "stall":
        time.sleep(_STALL_S)


class ObjectStore:
    """A server; `stop` and `start` take it off the network and bring it back with its objects."""

    def __init__(self) -> None:
        reason = "the S3 server of the tests is moto's (extra dev)"
        self._moto = pytest.importorskip("moto.moto_server.werkzeug_app", reason=reason)
        self.faults = Faults()
        self.port = 0
        self.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """As moto's own `ThreadedMotoServer`, which takes half a second to stop."""
        from werkzeug.serving import make_server

        app = self.faults.wrap(self._moto.DomainDispatcherApplication(self._moto.create_backend_app))
        self._server = make_server(
            "127.0.0.1", self.port, app, threaded=True, request_handler=self._moto.MotoRequestHandler
        )
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()


@contextmanager
def serving_objects(patch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """A store with one empty bucket, which the environment points to; pauses between attempts are short."""
    from maskwright.stores import requests

    store = ObjectStore()
    patch.setenv("AWS_ENDPOINT_URL", store.endpoint)
    patch.setenv("AWS_ACCESS_KEY_ID", "a-key-of-the-tests")
    patch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-of-the-tests")
    patch.setenv("AWS_REGION", "us-east-1")
    patch.setattr(requests, "FIRST_PAUSE_S", 0.001)
    patch.setattr(requests, "SILENCE_S", SILENCE_S)
    requests._build_system.cache_clear()
    try:
        import boto3

        boto3.client("s3", endpoint_url=store.endpoint).create_bucket(Bucket=BUCKET)
        yield store
    finally:
        requests._build_system.cache_clear()
        store.stop()
