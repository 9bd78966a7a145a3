"""A server of Google Cloud Storage's protocol (gcp-storage-emulator's), as a program, that fails on demand.

It is a process of its own, as pyarrow waits for some answers of Google's without letting other threads go on.

    python google_store.py      prints its port; PUT /faults gives the faults of the next requests
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import ThreadingHTTPServer
from typing import Any

import pytest

BUCKET = "corpus"


class GoogleStore:
    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"

    def fail(self, method: str, faults: Sequence[str]) -> None:
        """What the next requests of a method for contents meet: "500", or "cut" (half of the content)."""
        self._ask("PUT", {"method": method, "faults": list(faults)})

    def list_faults(self) -> list[str]:
        """Those that no request has met yet."""
        return list(json.loads(self._ask("GET"))["faults"])

    def _ask(self, method: str, values: Any = None) -> bytes:
        content = None if values is None else json.dumps(values).encode()
        request = urllib.request.Request(f"{self.endpoint}/faults", content, method=method)
        with urllib.request.urlopen(request) as answer:
            return bytes(answer.read())


@contextmanager
def serving_google(patch: pytest.MonkeyPatch) -> Iterator[GoogleStore]:
    """A store with one empty bucket, which the environment points to; pauses between attempts are short."""
    from maskwright.stores import requests

    pytest.importorskip("gcp_storage_emulator", reason="the server of the tests is gcp-storage-emulator (extra dev)")
    server = subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL)
    try:
        assert server.stdout is not None
        store = GoogleStore(int(server.stdout.readline()))
        patch.setenv("STORAGE_EMULATOR_HOST", store.endpoint)
        patch.setattr(requests, "FIRST_PAUSE_S", 0.001)
        requests._build_system.cache_clear()
        yield store
    finally:
        requests._build_system.cache_clear()
        server.kill()
        server.wait()


def main() -> None:
    from gcp_storage_emulator.server import RequestHandler
    from gcp_storage_emulator.storage import Storage

    faults: dict[str, Any] = {"method": "GET", "faults": []}

    class Handler(RequestHandler):  # type: ignore[misc]
        def _answer(self, method: str) -> None:
            if self.path == "/faults":
                if method == "PUT":
                    faults.update(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                content = json.dumps(faults).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
                return
            is_of_content = "alt=media" in self.path or "upload" in self.path
            fault = faults["faults"].pop(0) if faults["faults"] and method == faults["method"] and is_of_content else ""
            if fault == "500":
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self.send_response(500)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            if fault == "cut":
                self.wfile = _Half(self.wfile)
            getattr(super(), f"do_{method}")()

        def do_GET(self) -> None:  # noqa: N802
            self._answer("GET")

        def do_PUT(self) -> None:  # noqa: N802
            self._answer("PUT")

        def do_POST(self) -> None:  # noqa: N802
            self._answer("POST")

    storage = Storage(use_memory_fs=True)
    storage.create_bucket(BUCKET, {"name": BUCKET})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, storage))
    server.daemon_threads = True
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()


class _Half:
    """Sends the headers whole and half of what follows."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._has_headers = False

    def write(self, content: bytes) -> None:
        self._stream.write(content[: len(content) // 2] if self._has_headers else content)
        self._has_headers = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


if __name__ == "__main__":
    main()
