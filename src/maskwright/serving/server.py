"""A socket with uvicorn on it: bounds for slow clients, and an end in order on SIGTERM and Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from maskwright.errors import InputError
from maskwright.serving.refusals import describe
from maskwright.serving.state import ServerState

_BACKLOG = 2_048
_KEEP_ALIVE_S = 75
"""Longer than proxies keep theirs, so that they do not send into a connection that is being closed."""
_ARRIVED_S = 0.2
"""After the last connection is taken: what clients had sent by then is read, and so answered."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class _Protocol(HttpToolsProtocol):
    """Lets a connection go whose headers do not come in time, or the rest of a body that was refused; and answers what
    is no HTTP with JSON.
    """

    read_timeout_s: float
    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_more()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_more()

    def on_headers_complete(self) -> None:
        self._stop_expecting()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        if self.cycle.more_body:  # it is read and thrown away, so that the client gets to the answer
            self._expect_more()
        super().on_response_complete()

    def on_message_complete(self) -> None:
        self._stop_expecting()
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_expecting()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        body = json.dumps(describe(400, "the request is no HTTP/1.1", "/v1")).encode()
        head = f"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(f"{head}connection: close\r\n\r\n".encode() + body)
        self.transport.close()

    def _expect_more(self) -> None:
        self._stop_expecting()
        self._patience = self.loop.call_later(self.read_timeout_s, self.transport.abort)

    def _stop_expecting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, state: ServerState) -> None:
        super().__init__(config)
        self._state = state

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, but the process goes on afterwards, and so ends with code 0."""
        if threading.current_thread() is not threading.main_thread():  # the only one that may
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal stops the server in order, the second at once."""
        if self.should_exit:
            os._exit(128 + sig)
        self._state.is_stopping = True
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._state.is_stopping = True
        for server in self.servers:
            server.close()
        await asyncio.sleep(_ARRIVED_S)
        await super().shutdown(sockets)


def open_socket(host: str, port: int, patience_s: float) -> socket.socket:
    """Listens; a client that reads nothing of its answer for `patience_s` is let go by the system."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InputError(
            f"cannot listen on {host}: {error.strerror}; give an address of this machine as --host"
        ) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(patience_s * 1e3))
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        is_taken = error.errno == errno.EADDRINUSE
        advice = "another program does already: give another --port" if is_taken else "give another --host or --port"
        raise InputError(f"cannot listen on {host}:{port}: {error.strerror}; {advice}") from error
    return listener


def name_url(listener: socket.socket, host: str) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{listener.getsockname()[1]}"


def run_server(
    app: FastAPI, state: ServerState, listener: socket.socket, load: Callable[[Callable[[], None]], None] | None = None
) -> None:
    """Answers until a signal comes. `load` runs in a thread meanwhile, and is given what stops the server."""
    settings = state.settings
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # its errors quote requests
    protocol = type("Protocol", (_Protocol,), {"read_timeout_s": settings.read_timeout_s})
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(settings.timeout_s + settings.read_timeout_s) + 1,
    )
    server = _Server(config, state)

    def stop() -> None:
        server.should_exit = True

    if load is not None:
        threading.Thread(target=load, args=(stop,), name="loading", daemon=True).start()
    server.run(sockets=[listener])
