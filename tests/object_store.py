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
        self._moto = pytest.importorskip("moto.server", reason="the S3 server of the tests is moto's (extra dev)")
        self.faults = Faults()
        self.port = 0
        self.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._server = self._moto.ThreadedMotoServer(ip_address="127.0.0.1", port=self.port, verbose=False)
        self._server.start()
        _, self.port = self._server.get_host_and_port()
        server = self._server._server
        server.app = self.faults.wrap(server.app)

    def stop(self) -> None:
        self._server.stop()


@contextmanager
def serving_objects(patch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """A store with one empty bucket, which the environment points to; pauses between attempts are short."""
    from maskwright import stores

    store = ObjectStore()
    patch.setenv("AWS_ENDPOINT_URL", store.endpoint)
    patch.setenv("AWS_ACCESS_KEY_ID", "a-key-of-the-tests")
    patch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-of-the-tests")
    patch.setenv("AWS_REGION", "us-east-1")
    patch.setattr(stores, "FIRST_PAUSE_S", 0.001)
    patch.setattr(stores, "SILENCE_S", SILENCE_S)
    stores._build_system.cache_clear()
    try:
        import boto3

        boto3.client("s3", endpoint_url=store.endpoint).create_bucket(Bucket=BUCKET)
        yield store
    finally:
        stores._build_system.cache_clear()
        store.stop()
