"""The search box of an index, and the panels of retrievers, in a real browser."""

from __future__ import annotations

from typing import Any

import pytest
from looking import PHONE, WIDE, Page
from running import Running

pytestmark = pytest.mark.slow
ENTER = "\ue007"


@pytest.fixture
def search_page(driver: Any, search_server: Running) -> Page:
    driver.get_log("browser")
    return Page(driver, search_server.url)


@pytest.mark.parametrize("size", [WIDE, PHONE])
@pytest.mark.parametrize("index", ["dense-index", "words-index"])
def test_search_by_keyboard_shows_what_the_server_finds(
    search_page: Page, search_server: Running, index: str, size: tuple[int, int]
) -> None:
    search_page.open(f"/#{index}/search", size)
    search_page.find("#panel input[type=search]")
    search_page.run("document.querySelector('#panel input[type=search]').focus()")
    search_page.press("the quiet river", ENTER)
    search_page.wait("document.querySelectorAll('.hits > li').length === 10")
    hits = search_server.ask("/search", query="the quiet river", index=index)["hits"]
    shown = [
        [one.text for one in item.find_elements("css selector", ".hit-id, .hit-score")]
        for item in search_page.find_all(".hits > li")
    ]
    assert shown == [[hit["id"], f"{hit['score']:.4f}"] for hit in hits]
    curl, python = (one.text for one in search_page.find_all("#code pre"))
    assert f'"index":"{index}"' in curl
    assert "mw.search(" in python
    search_page.check_fits()
    search_page.check_nothing_failed()


def test_documents_are_shown_as_text(search_page: Page, search_server: Running) -> None:
    search_page.open("/#words-index/search")
    search_page.write("#panel input[type=search]", "cello")
    search_page.click("#panel button.main")
    search_page.wait("document.querySelector('.hits')")
    (hit, *_) = search_server.ask("/search", query="cello", index="words-index")["hits"]
    assert "<img" in hit["text"]
    assert search_page.run("return document.querySelector('.hits .hit-text p').textContent") == hit["text"]
    assert not search_page.find_all(".hits img")
    assert search_page.driver.title == "Maskwright"


def test_an_empty_search_says_what_is_missing(search_page: Page) -> None:
    search_page.open("/#words-index/search")
    search_page.click("#panel button.main")
    assert "nothing to look for" in search_page.text("#panel .notice.bad")


def test_tokens_of_a_sparse_retriever_have_bars(search_page: Page, search_server: Running) -> None:
    search_page.open("/#sparse/embed-sparse", PHONE)
    search_page.write("#panel textarea", "the quiet river")
    search_page.click("#panel button.main")
    search_page.wait("document.querySelector('.bars')")
    answer = search_server.ask("/api/embed-sparse", inputs="the quiet river", role="document")
    labels = [one.text for one in search_page.find_all(".bars .bar-label")]
    assert labels == answer["tokens"][:40]
    search_page.check_fits()
    search_page.check_nothing_failed()


def test_late_interaction_ranks_on_the_page(search_page: Page) -> None:
    search_page.open("/#late/rerank")
    search_page.click("#panel button.main")
    search_page.wait("document.querySelectorAll('.bars li').length === 4")
    assert '"model":"late"' in search_page.find_all("#code pre")[0].text
    search_page.check_nothing_failed()
