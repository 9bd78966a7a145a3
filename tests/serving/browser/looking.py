"""What a person does with a page, and runs to look at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PATIENCE_S = 120.0
WIDE, PHONE = (1280, 900), (360, 740)
Size = tuple[int, int]


class Page:
    """A page of a server, in a browser."""

    def __init__(self, driver: Any, url: str) -> None:
        self.driver = driver
        self.url = url
        self.patience_s = PATIENCE_S

    def open(self, path: str, size: Size = WIDE) -> None:
        self.driver.get("about:blank")
        self.resize(size)
        self.driver.get(self.url + path)

    def resize(self, size: Size) -> None:
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def run(self, script: str, *values: Any) -> Any:
        return self.driver.execute_script(script, *values)

    def call(self, module: str, expression: str, *values: Any) -> Any:
        """What an expression of `m`, a module of the page, and `v`, the values, gives."""
        script = (
            f"const v = [...arguments].slice(0, -1), done = arguments[arguments.length - 1];"
            f"import('/static/{module}').then((m) => done({expression})).catch((error) => done(String(error)))"
        )
        return self.driver.execute_async_script(script, *values)

    def wait(self, script: str, *values: Any) -> Any:
        """Until a script gives something."""
        from selenium.common.exceptions import TimeoutException
        from selenium.webdriver.support.wait import WebDriverWait

        try:
            return WebDriverWait(self.driver, self.patience_s, 0.1).until(
                lambda _: self.run(f"return {script}", *values)
            )
        except TimeoutException as error:
            shown = self.run("return document.body.innerText")
            raise AssertionError(f"{script} gave nothing; the page shows: {shown}") from error

    def find(self, selector: str) -> Any:
        self.wait("document.querySelector(arguments[0])", selector)
        return self.driver.find_element("css selector", selector)

    def find_all(self, selector: str) -> list[Any]:
        return list(self.driver.find_elements("css selector", selector))

    def text(self, selector: str) -> str:
        return str(self.find(selector).text)

    def click(self, selector: str) -> None:
        self.run("arguments[0].scrollIntoView({block: 'center'})", self.find(selector))
        self.find(selector).click()

    def write(self, selector: str, text: str) -> None:
        """As pasted: drivers do not type characters beyond the basic plane."""
        self.run(
            "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input', {bubbles: true}))",
            self.find(selector),
            text,
        )

    def press(self, *keys: str) -> None:
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def check_nothing_failed(self, *expected: str) -> None:
        """No error of a script and nothing that the page's own rules forbid; `expected` are parts of messages."""
        problems = [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]
        # a page asks whether there is a board, or a model, by asking for it
        known = ("/board", "/favicon.ico", "/api/models", *expected)
        assert [one for one in problems if not any(part in one for part in known)] == []

    def check_fits(self) -> None:
        """Nothing sticks out at the right."""
        width, shown = self.run("return [document.documentElement.scrollWidth, innerWidth]")
        assert width <= shown


def write_run(folder: Path, num_lines: int, **settings: Any) -> None:
    """A run that has stopped, with settings and a falling loss."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(json.dumps({"training": {"max_steps": 100}, **settings}))
    (folder / "data.json").write_text("{}")
    lines = [{"step": 10 * (n + 1), "loss": 8 / (n + 1), "tokens": 640 * (n + 1)} for n in range(num_lines)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
