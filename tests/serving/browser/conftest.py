"""A Chromium that looks at pages; without one, or without selenium, these tests are skipped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from looking import PATIENCE_S, Page
from running import Running, running

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def driver() -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: pip install '.[browser]'")
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    program = shutil.which("chromedriver")
    if browser is None or program is None:
        pytest.skip("no Chromium with its driver here: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for word in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(word)
    if os.geteuid() == 0:  # Chromium's sandbox refuses root, which containers run as
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(program))
    opened.set_script_timeout(PATIENCE_S)
    try:
        yield opened
    finally:
        opened.quit()


@pytest.fixture
def page(driver: Any, server: Running) -> Page:
    driver.get_log("browser")
    return Page(driver, server.url)


@pytest.fixture
def runs_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder


@pytest.fixture
def board(driver: Any, runs_folder: Path) -> Iterator[Page]:
    driver.get_log("browser")
    with running([], board=runs_folder) as one:
        yield Page(driver, one.url)
        driver.get("about:blank")  # which lets go of the connections
