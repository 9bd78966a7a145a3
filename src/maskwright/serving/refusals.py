"""What a server says when it does not answer: one sentence, in the shape that the clients of a route expect."""

from __future__ import annotations

import json
import logging
import traceback
from typing import Any

from starlette.responses import Response

from maskwright.errors import InputError, RunError, describe_shortage

_TYPES = {
    400: "invalid_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "too_large",
    422: "invalid_request",
    429: "overloaded",
    500: "internal_error",
    503: "unavailable",
}
_TEI_TYPES = {429: "Overloaded", 500: "Backend", 503: "Unhealthy"}
_EMBEDDING_PATHS = ("/embed", "/embed_all", "/embed_sparse")
TEI_PATHS = ("/", *_EMBEDDING_PATHS, "/predict", "/rerank", "/similarity", "/tokenize", "/info", "/health")
_log = logging.getLogger(__name__)


class Refusal(Exception):  # noqa: N818 - a server that refuses has not failed
    """A request is not answered: the status and one sentence."""

    def __init__(self, status: int, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after_s = retry_after_s


def respond_to(error: BaseException, path: str) -> Response:
    """The answer of a route at which something was raised; what is no fault of the request is logged."""
    refusal = as_refusal(error)
    headers = {} if refusal.retry_after_s is None else {"Retry-After": str(refusal.retry_after_s)}
    if refusal.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    body = json.dumps(describe(refusal.status, refusal.message, path))
    return Response(body, refusal.status, headers, media_type="application/json")


def describe(status: int, message: str, path: str) -> dict[str, Any]:
    if path in TEI_PATHS:
        return {"error": message, "error_type": _TEI_TYPES.get(status, "Validation")}
    return {"error": {"message": message, "type": _TYPES.get(status, "error"), "code": status}}


def as_refusal(error: BaseException) -> Refusal:
    if isinstance(error, Refusal):
        return error
    if isinstance(error, InputError):
        return Refusal(422, str(error))
    if isinstance(error, RunError):  # out of memory with a single text, as the runner says it
        _log.error("a request failed: %s", error)
        return Refusal(500, str(error))
    # Messages of other errors may quote the request, so what is logged is where it happened.
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    place = " < ".join(f"{frame.name} ({frame.filename}:{frame.lineno})" for frame in reversed(frames))
    _log.error("a request failed with %s in %s", type(error).__name__, place)
    shortage = describe_shortage(error)
    return Refusal(500, shortage or f"the server failed with a {type(error).__name__}; its log says where")
