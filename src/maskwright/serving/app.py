"""The application: routes, the guard in front of them, and errors in the shape of each route."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from maskwright.serving.direct import Direct
from maskwright.serving.guard import Guard
from maskwright.serving.openai import build_openai_routes
from maskwright.serving.own import build_own_routes
from maskwright.serving.page import build_page_routes
from maskwright.serving.refusals import Refusal, respond_to
from maskwright.serving.state import ServerState
from maskwright.serving.tei import build_tei_routes
from maskwright.version import __version__

_DESCRIPTION = (
    "Encoders over HTTP: OpenAI's embeddings, the routes of text-embeddings-inference, and a route for each kind."
)


def build_app(state: ServerState) -> FastAPI:
    # The framework's own page of routes loads its scripts from another host.
    app = FastAPI(title="Maskwright", version=__version__, description=_DESCRIPTION, docs_url=None, redoc_url=None)
    routers = (build_openai_routes(state), build_tei_routes(state), build_own_routes(state), build_page_routes())
    for router in routers:
        app.include_router(router)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_middleware(Direct, routers=routers)
    app.add_middleware(Guard, settings=state.settings, meter=state.meter, is_stopping=lambda: state.is_stopping)
    if state.settings.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(state.settings.cors),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
        )
    return app


async def _answer_http_error(request: Request, error: Exception) -> Response:
    """Of the framework: no such route, or not with this method."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    sentences = {
        404: f"there is no {request.method} {path:.80}; /docs lists what there is",
        405: f"{path:.80} takes no {request.method}; /docs lists what there is",
    }
    return respond_to(Refusal(error.status_code, sentences.get(error.status_code, str(error.detail))), path)


async def _answer_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return respond_to(Refusal(422, describe_invalid(error)), request.url.path)


def describe_invalid(error: RequestValidationError) -> str:
    """One sentence of what may be several findings, the deepest of them: those of a union come for each member."""
    found = max(error.errors(), key=lambda one: len(one["loc"]))
    if found["type"] == "json_invalid":
        return 'the body is no JSON; send an object such as {"inputs": "a text"}'
    place = ".".join(str(part) for part in found["loc"][1:] if not _is_member(part))
    if found["type"] == "model_attributes_type" or not place:
        return "the body is no JSON object; send one, with the header Content-Type: application/json"
    if found["type"] == "missing":
        return f"'{place}' is missing; /docs shows what this route takes"
    if found["type"] == "extra_forbidden":
        return f"this route has no '{place}'; /docs shows what it takes"
    return f"'{place}': {found['msg'][:1].lower()}{found['msg'][1:]}; /docs shows what this route takes"


def _is_member(part: str | int) -> bool:
    """Whether a part of a place names a type of a union and no key of the request."""
    return isinstance(part, str) and (part in ("str", "int") or "[" in part or part[:1].isupper())
