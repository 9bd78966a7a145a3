"""What every request passes: who may ask, how much and how long; and what a route raises becomes an answer.

A body is read whole before a route sees it, within bounds of size and time, so that slow clients hold no more than a
buffer. A client that goes away has its request cancelled.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from maskwright.serving.metrics import ServerMeter
from maskwright.serving.refusals import Refusal, respond_to
from maskwright.serving.settings import ServeSettings

_OPEN_PATHS = ("/", "/board", "/docs", "/health", "/ready", "/static/")
"""Read without a key; the last by what begins with it."""
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")


class Guard:
    def __init__(
        self, app: ASGIApp, settings: ServeSettings, meter: ServerMeter, is_stopping: Callable[[], bool]
    ) -> None:
        self._app = app
        self._settings = settings
        self._meter = meter
        self._is_stopping = is_stopping
        self._key = None if settings.api_key is None else settings.api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer(send, self._is_stopping, self._end_running)
        begun_s = time.perf_counter()
        self._meter.num_running += 1
        try:
            await self._answer(scope, receive, answer)
        except _ClientGoneError:
            answer.status = 499
        except Exception as error:
            if answer.status:  # it has begun, and the server ends the connection
                raise
            await respond_to(error, scope["path"])(scope, receive, answer)
        finally:
            if not answer.is_whole:
                self._end_running()
            route = getattr(scope.get("route"), "path", "other")
            self._meter.count_response(_name_method(scope), route, answer.status, time.perf_counter() - begun_s)

    def _end_running(self) -> None:
        self._meter.num_running -= 1

    async def _answer(self, scope: Scope, receive: Receive, send: _Answer) -> None:
        headers = Headers(scope=scope)
        self._check_host(headers)
        is_open = scope["method"] in ("GET", "HEAD") and scope["path"].startswith(_OPEN_PATHS[-1])
        is_open |= scope["method"] in ("GET", "HEAD") and scope["path"] in _OPEN_PATHS
        if not is_open:
            self._check_key(headers)
            is_asking = scope["method"] not in ("GET", "HEAD")  # figures are read when there is too much to do as well
            if is_asking and self._meter.num_running > self._settings.max_concurrent:
                raise Refusal(
                    429, f"{self._settings.max_concurrent} requests are being answered; send it again later", 1
                )
        body = await self._read_body(headers, receive)
        await self._run_while_connected(scope, _replay(body), receive, send)

    def _check_host(self, headers: Headers) -> None:
        """A page of the web that gave its own name this machine's address cannot ask a server on loopback."""
        if self._settings.is_loopback:
            host, separator, port = headers.get("host", "").rpartition(":")
            name = host if separator and port.isdigit() else headers.get("host", "")
            if name.lower() not in (*_LOCAL_HOSTS, self._settings.host):
                raise Refusal(
                    403, f"the request is for the host '{name:.80}'; this server answers on {self._settings.host}"
                )

    def _check_key(self, headers: Headers) -> None:
        if self._key is None:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        is_right = hmac.compare_digest(given.strip().encode(), self._key)
        if scheme.lower() != "bearer" or not is_right:
            raise Refusal(401, "this server needs a key; send it as 'Authorization: Bearer KEY'")

    async def _read_body(self, headers: Headers, receive: Receive) -> bytes:
        limit = self._settings.max_body_bytes
        sentence = f"the body is larger than {self._settings.max_body_mb:g} MB; send it in parts"
        said = headers.get("content-length", "")
        if said.isdigit() and int(said) > limit:
            raise Refusal(413, sentence)
        parts, size = [], 0
        try:
            async with asyncio.timeout(self._settings.read_timeout_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _ClientGoneError
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > limit:
                        raise Refusal(413, sentence)
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise Refusal(
                408, f"the body took longer than {self._settings.read_timeout_s:g} s; send it faster"
            ) from None

    async def _run_while_connected(self, scope: Scope, body: Receive, receive: Receive, send: _Answer) -> None:
        """The route's answer; a client that goes away takes its request with it."""
        task = asyncio.ensure_future(self._run(scope, body, send))
        watch = asyncio.ensure_future(_wait_for_disconnect(receive))
        try:
            await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
            if not task.done() and not send.is_whole:
                raise _ClientGoneError
            await task
        finally:
            watch.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))

    async def _run(self, scope: Scope, body: Receive, send: Send) -> None:
        timeout_s = self._settings.timeout_s
        try:
            async with asyncio.timeout(timeout_s) as deadline:
                await self._app(scope, body, send)
        except TimeoutError:
            if not deadline.expired():
                raise
            raise Refusal(503, f"no answer within {timeout_s:g} s; send the request again later", 1) from None


class _ClientGoneError(Exception):
    """Nobody reads the answer."""


class _Answer:
    """Sends an answer, and remembers its status.

    `on_end` is called before the last of it is sent: a client may ask again before this request is cleared away.
    """

    def __init__(self, send: Send, is_stopping: Callable[[], bool], on_end: Callable[[], None]) -> None:
        self.status = 0
        self.is_whole = False
        self._send = send
        self._is_stopping = is_stopping
        self._on_end = on_end

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self._is_stopping():
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
        elif message["type"] == "http.response.body":
            self.is_whole = not message.get("more_body", False)
            if self.is_whole:
                self._on_end()
        await self._send(message)


def _replay(body: bytes) -> Receive:
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return messages.pop() if messages else {"type": "http.disconnect"}

    return receive


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _name_method(scope: Scope) -> str:
    """Of the usual ones; others would let a stranger fill the figures with names."""
    return scope["method"] if scope["method"] in ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE") else "other"
