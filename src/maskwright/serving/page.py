"""The page of a server and its files, from the package alone; nothing in a request names a file beyond them."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import APIRouter
from starlette.responses import Response

from maskwright.serving.refusals import Refusal

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
INDEX = "index.html"
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'none';"
        " frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def list_page_files() -> list[str]:
    return sorted(file.name for file in _folder().iterdir() if _find_suffix(file.name) in _TYPES)


def read_page_file(name: str) -> Response:
    """A file of the page with headers that let a browser load nothing from elsewhere."""
    if name not in list_page_files():
        raise Refusal(404, f"the page has no file '{name:.80}'")
    content = _folder().joinpath(name).read_bytes()
    return Response(content, media_type=_TYPES[_find_suffix(name)], headers=_HEADERS)


def build_page_routes() -> APIRouter:
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    async def index() -> Response:
        return read_page_file(INDEX)

    @router.get("/docs")
    async def docs() -> Response:
        return read_page_file("docs.html")

    @router.get("/static/{name}")
    async def static(name: str) -> Response:
        return read_page_file(name)

    return router


def _folder() -> Traversable:
    return files("maskwright.serving").joinpath("page")


def _find_suffix(name: str) -> str:
    return name[name.rfind(".") :] if "." in name else ""
