"""Which requests go straight to their route, and which through the framework."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from pydantic import BaseModel
from running import Running
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from maskwright.serving.direct import Direct

JSON = b"application/json"


class Doubled(BaseModel):
    number: int


router = APIRouter()


@router.post("/double")
async def double(request: Doubled) -> Response:
    return Response(str(2 * request.number))


@router.post("/double/{number}")
async def double_of_path(number: int) -> Response:
    return Response(str(2 * number))


def ask(path: str, body: bytes, content_type: bytes = JSON, method: str = "POST") -> tuple[int, bytes, bool]:
    """Status and body of the answer, and whether the framework gave it."""
    framework = FastAPI()
    framework.include_router(router)
    asked_framework: list[str] = []
    sent: list[Message] = []
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def count(scope: Scope, receive: Receive, send: Send) -> None:
        asked_framework.append(scope["path"])
        await framework(scope, receive, send)

    async def receive() -> Message:
        return waiting.pop()

    async def send(message: Message) -> None:
        sent.append(message)

    scope: dict[str, Any] = {"type": "http", "method": method, "path": path, "query_string": b""}
    scope["headers"] = [(b"content-type", content_type)]
    asyncio.run(Direct(count, [router])(scope, receive, send))
    return sent[0]["status"], sent[1]["body"], bool(asked_framework)


def test_a_valid_request_goes_straight_to_its_route() -> None:
    assert ask("/double", b'{"number": 4}') == (200, b"8", False)


@pytest.mark.parametrize(
    ("path", "body", "content_type", "method", "status"),
    [
        ("/double", b'{"number": 4}', b"application/json; charset=utf-8", "POST", 200),
        ("/double", b'{"number": "four"}', JSON, "POST", 422),
        ("/double", b'{"number"', JSON, "POST", 422),
        ("/double", b"[" * 100_000, JSON, "POST", 400),
        ("/double", b"", JSON, "POST", 422),
        ("/double/4", b"", JSON, "POST", 200),
        ("/double", b"", JSON, "GET", 405),
        ("/none", b"{}", JSON, "POST", 404),
    ],
)
def test_every_other_one_goes_through_the_framework_with_its_body(
    path: str, body: bytes, content_type: bytes, method: str, status: int
) -> None:
    found, answer, by_framework = ask(path, body, content_type, method)
    assert (found, by_framework) == (status, True)
    assert status != 200 or answer == b"8"


def test_the_answer_is_the_same_on_both_ways(server: Running) -> None:
    body = json.dumps({"inputs": "the [MASK] sees a road."}).encode()
    answers = [
        server.client.post("/fill-mask", content=body, headers={"Content-Type": content_type})
        for content_type in ("application/json", "application/json; charset=utf-8")
    ]
    assert [one.status_code for one in answers] == [200, 200]
    assert answers[0].content == answers[1].content
