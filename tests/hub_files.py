"""A server on this machine that speaks what reading files of a dataset needs of the Hugging Face Hub's protocol."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

REPOSITORY = "someone/texts"


class HubFiles(ThreadingHTTPServer):
    """The files of a dataset, or of a model of the same name.

    `faults` are what the next requests for contents meet: "500" or "cut".
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.faults: list[str] = []

    def describe(self, name: str) -> dict[str, Any]:
        content = self.files[name]
        return {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}


class _Handler(BaseHTTPRequestHandler):
    server: HubFiles
    protocol_version = "HTTP/1.1"

    def log_message(self, *given: Any) -> None:
        """Nothing on stderr, which tests read."""

    def _answer(self, content: bytes, status: int = 200, sent: int | None = None, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[:sent])
        self.close_connection = sent is not None

    def _missing(self, code: str) -> None:
        self._answer(b"{}", 404, X_Error_Code=code)

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        path = path.replace("/api/models/", "/api/datasets/")
        if path.startswith(f"/api/datasets/{REPOSITORY}/tree/"):
            folder = path.split("/tree/main", 1)[1].strip("/")
            names = [name for name in self.server.files if f"{name}/".startswith(f"{folder}/" if folder else "")]
            self._answer(json.dumps([self.server.describe(name) for name in names]).encode())
        elif path in (f"/api/datasets/{REPOSITORY}", f"/api/datasets/{REPOSITORY}/revision/main"):
            self._answer(json.dumps({"id": REPOSITORY, "sha": "0" * 40, "siblings": []}).encode())
        elif path.startswith("/api/"):
            self._missing("RepoNotFound")
        else:
            self._send_file(path.split("/resolve/main/", 1)[1])

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        found = [self.server.describe(name) for name in body["paths"] if name in self.server.files]
        folders = [name for name in body["paths"] if any(file.startswith(f"{name}/") for file in self.server.files)]
        found += [{"type": "directory", "path": name, "oid": "0" * 40} for name in folders]
        self._answer(json.dumps(found).encode())

    def _send_file(self, name: str) -> None:
        if name not in self.server.files:
            self._missing("EntryNotFound")
            return
        content = self.server.files[name]
        if self.command == "GET" and self.server.faults:
            fault = self.server.faults.pop(0)
            if fault == "500":
                self._answer(b"", 500)
                return
            self._answer(content, sent=len(content) // 2)
            return
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        part = content[int(first) : int(last) + 1 if last else None]
        is_part = "Range" in self.headers
        self._answer(part, 206 if is_part else 200, ETag=f'"{self.server.describe(name)["oid"]}"')


@contextmanager
def serving_hub(patch: pytest.MonkeyPatch) -> Iterator[HubFiles]:
    """A hub that `hf://` leads to; pauses between attempts are short."""
    from huggingface_hub import HfFileSystem

    from maskwright.stores import objects, requests

    server = HubFiles()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    patch.setattr(requests, "FIRST_PAUSE_S", 0.001)
    for module in (objects, requests):
        patch.setattr(module, "open_hub", lambda: HfFileSystem(endpoint=endpoint, skip_instance_cache=True))
    requests._build_system.cache_clear()
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield server
    finally:
        requests._build_system.cache_clear()
        server.shutdown()
        server.server_close()
