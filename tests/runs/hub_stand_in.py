"""A server on this machine that speaks as much of the hub's protocol as a push of a model needs."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

TOKEN = "hf_standin"


class HubStandIn(ThreadingHTTPServer):
    """Repositories by name, with their files; `refusals` are statuses by the part of a path that asks for them."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.refusals: dict[str, int] = {}
        self.objects: dict[str, bytes] = {}
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: HubStandIn
    protocol_version = "HTTP/1.1"

    def log_message(self, *given: Any) -> None:
        """Nothing on stderr, which tests read."""

    def _answer(self, values: Any, status: int = 200) -> None:
        body = json.dumps(values).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _read(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _is_refused(self, path: str) -> bool:
        self.server.requests.append(f"{self.command} {path}")
        status = next((status for part, status in self.server.refusals.items() if part in path), None)
        if status is None and not path.startswith("/store/") and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            status = 401
        if status is not None:
            self._answer({"error": f"refused with {status}"}, status)
        return status is not None

    def do_GET(self) -> None:
        if not self._is_refused(self.path):
            self._answer({"error": "not found"}, 404)

    def do_PUT(self) -> None:
        content, path = self._read(), self.path
        if self._is_refused(path):
            return
        assert hashlib.sha256(content).hexdigest() == path.removeprefix("/store/")
        self.server.objects[path.removeprefix("/store/")] = content
        self._answer({})

    def do_POST(self) -> None:
        body, path = self._read(), self.path.partition("?")[0]
        if self._is_refused(path):
            return
        if path == "/api/repos/create":
            given = json.loads(body)
            repository = f"{given.get('organization') or 'me'}/{given['name']}"
            is_known = repository in self.server.repositories
            self.server.repositories.setdefault(repository, {})
            if not is_known:
                self.server.private[repository] = given.get("visibility") == "private" or bool(given.get("private"))
            self._answer({"url": f"{self.server.url}/{repository}"}, 409 if is_known else 200)
        elif path == "/api/validate-yaml":
            self._answer({"errors": [], "warnings": []})
        elif "/preupload/" in path:
            files = [one["path"] for one in json.loads(body)["files"]]
            modes = {name: "lfs" if name.endswith(".safetensors") else "regular" for name in files}
            self._answer(
                {"files": [{"path": name, "uploadMode": mode, "shouldIgnore": False} for name, mode in modes.items()]}
            )
        elif path.endswith("/info/lfs/objects/batch"):
            wanted = json.loads(body)["objects"]
            actions = [
                {**one, "actions": {"upload": {"href": f"{self.server.url}/store/{one['oid']}"}}} for one in wanted
            ]
            self._answer({"objects": actions, "transfer": "basic"})
        elif "/commit/" in path:
            repository = path.removeprefix("/api/models/").partition("/commit/")[0]
            self._commit(self.server.repositories[repository], body)
            commit = f"{self.server.url}/{repository}/commit/{'0' * 40}"
            self._answer({"success": True, "commitUrl": commit, "commitOid": "0" * 40})
        else:
            self._answer({"error": f"{path} is not known here"}, 404)

    def _commit(self, files: dict[str, bytes], body: bytes) -> None:
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.server.objects[value["oid"]]


@contextmanager
def serving_hub() -> Iterator[HubStandIn]:
    server = HubStandIn()
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
