"""Requests that a route takes as they are go straight to it; the framework takes longer than all else of a small one.

All others, such as those that are not valid, go through the framework, which says what is wrong with them.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple, get_type_hints

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class _Target(NamedTuple):
    route: APIRoute
    request: type[BaseModel]
    endpoint: Callable[[Any], Awaitable[Response]]


class Direct:
    def __init__(self, app: ASGIApp, routers: Iterable[APIRouter]) -> None:
        self._app = app
        found = (_find_target(route) for router in routers for route in router.routes if isinstance(route, APIRoute))
        self._targets = {target.route.path: target for target in found if target is not None}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        target = self._targets.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if target is None or not _has_json(scope):
            await self._app(scope, receive, send)
            return
        message = await receive()
        request = None if message.get("more_body", False) else _read(target, message)
        if request is None:
            await self._app(scope, _put_back(message, receive), send)
            return
        scope["route"] = target.route
        response = await target.endpoint(request)
        await response(scope, receive, send)


def _find_target(route: APIRoute) -> _Target | None:
    """Of a route that takes nothing but a body."""
    hints = get_type_hints(route.endpoint)
    taken = [hints[name] for name in inspect.signature(route.endpoint).parameters]
    if route.methods != {"POST"} or len(taken) != 1 or not issubclass(taken[0], BaseModel):
        return None
    return _Target(route, taken[0], route.endpoint)


def _has_json(scope: Scope) -> bool:
    return any(name == b"content-type" and value == b"application/json" for name, value in scope["headers"])


def _read(target: _Target, message: Message) -> BaseModel | None:
    """None for what is no valid request."""
    try:
        return target.request.model_validate(json.loads(message.get("body", b"")))
    except (ValueError, RecursionError):
        return None


def _put_back(message: Message, receive: Receive) -> Receive:
    messages = [message]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return receive_again
