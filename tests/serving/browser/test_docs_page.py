"""The page of routes in a real browser: it is made from the server's own description, and its forms ask."""

from __future__ import annotations

from typing import Any

import pytest
from looking import PHONE, WIDE
from running import Running

pytestmark = pytest.mark.slow


def open_route(page: Any, route: str, size: tuple[int, int] = WIDE) -> None:
    page.open("/docs", size)
    page.wait("document.getElementById(arguments[0])", route)
    page.run("document.getElementById(arguments[0]).open = true", route)
    page.wait("document.getElementById(arguments[0]).querySelector('form')", route)


def test_every_route_is_listed(page: Any, server: Running) -> None:
    page.open("/docs")
    described = server.client.get("/openapi.json").json()["paths"]
    routes = {f"{method.upper()} {path}" for path, methods in described.items() for method in methods}
    page.wait("document.querySelector('.route')")
    assert set(page.run("return [...document.querySelectorAll('.route')].map((one) => one.id)")) == routes
    page.check_nothing_failed()


@pytest.mark.parametrize("size", [WIDE, PHONE])
def test_a_form_sends_its_body_and_shows_the_answer(page: Any, size: tuple[int, int]) -> None:
    open_route(page, "POST /api/embed", size)
    keys = page.run("return [...document.querySelectorAll('.route[open] th')].map((one) => one.innerText.trim())")
    assert "inputs *" in keys
    page.click(".route[open] button.main")
    assert '"embeddings"' in page.text(".route[open] .answered")
    page.check_fits()
    page.check_nothing_failed()


def test_a_refusal_is_shown_in_the_servers_words(page: Any) -> None:
    open_route(page, "POST /api/embed")
    page.write(".route[open] textarea", '{"inputs": "a", "inptus": 1}')
    page.click(".route[open] button.main")
    assert "no 'inptus'" in page.text(".route[open] .notice.bad")
    page.write(".route[open] textarea", '{"inputs": ')
    page.click(".route[open] button.main")
    page.wait("document.querySelector('.route[open] .notice.bad').innerText.includes('no JSON')")
    page.check_nothing_failed("422")
