"""Figures of a server, for Prometheus and for the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from running import Running, running

from maskwright.serving import page
from maskwright.serving.metrics import Histogram, ServerMeter, write_prometheus

_SAMPLE = re.compile(r'(\w+)(?:\{((?:\w+="(?:[^"\\]|\\.)*",?)*)\})? ([0-9.e+-]+)')


def read_samples(text: str) -> dict[str, float]:
    """By name and labels; every line is one of the format."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("# "):
            match = _SAMPLE.fullmatch(line)
            assert match is not None, line
            found[line.rpartition(" ")[0]] = float(match[3])
    return found


def test_requests_texts_and_tokens_are_counted(model_folders: dict[str, Path]) -> None:
    with running([model_folders["language"], model_folders["entities"]]) as server:
        before = server.client.get("/api/stats").json()
        assert (before["requests_total"], before["p50_ms"]) == (0, None)
        tokens = server.ask("/api/embed", inputs=["the cat", "a dog sees"])["tokens"]
        server.ask("/ner", inputs="the cat")
        server.refuse("/ner", 422, {"inputs": ""})
        found = read_samples(server.client.get("/metrics").text)
        stats = server.client.get("/api/stats").json()
    assert found['maskwright_texts_total{model="language",kind="embed"}'] == 2
    assert found['maskwright_tokens_total{model="language",kind="embed"}'] == tokens
    assert found['maskwright_requests_total{method="POST",route="/ner",status="200"}'] == 1
    assert found['maskwright_requests_total{method="POST",route="/ner",status="422"}'] == 1
    assert found['maskwright_request_seconds_count{route="/ner"}'] == 2
    assert found['maskwright_batch_tokens_sum{model="language"}'] == tokens
    assert found['maskwright_model_ready{model="entities"}'] == 1
    assert found["maskwright_queue_tokens"] == 0
    assert found["process_resident_memory_bytes"] > 1e7
    assert (stats["requests_total"], stats["texts_total"], stats["queue_texts"]) == (2, 3, 0)
    assert stats["models"]["language"]["requests_total"] == 1
    assert 0 < stats["p50_ms"] <= stats["p99_ms"]
    assert stats["requests_per_s"] > 0


def test_paths_of_strangers_make_no_new_figures(server: Running) -> None:
    for number in range(3):
        server.client.get(f"/strange-{number}")
    server.client.request("STRANGE", "/ner")
    text = server.client.get("/metrics").text
    assert "strange" not in text.lower()


def test_a_histogram_counts_what_is_at_most_its_bound() -> None:
    histogram = Histogram([1, 2])
    for value in (0.5, 1, 1.5, 3):
        histogram.add(value)
    lines = list(histogram.write("size", {"model": "a"}))
    assert lines == [
        'size_bucket{model="a",le="1"} 2',
        'size_bucket{model="a",le="2"} 3',
        'size_bucket{model="a",le="+Inf"} 4',
        'size_sum{model="a"} 6.0',
        'size_count{model="a"} 4',
    ]


def test_names_are_escaped() -> None:
    text = write_prometheus(ServerMeter(), {}, {'a"b\\c\nd': True}, (0, 0))
    assert 'maskwright_model_ready{model="a\\"b\\\\c\\nd"} 1' in text


def test_the_page_comes_from_the_package_and_nothing_else_does(
    server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "page").mkdir()
    (tmp_path / "secret.html").write_text("secret")
    (tmp_path / "page" / "index.html").write_text("<!doctype html><title>page</title>")
    (tmp_path / "page" / "app.js").write_text("'use strict';")
    (tmp_path / "page" / "notes.txt").write_text("no part of the page")
    monkeypatch.setattr(page, "files", lambda package: tmp_path)
    index, script = server.client.get("/"), server.client.get("/static/app.js")
    assert (index.status_code, index.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert script.headers["Content-Type"] == "text/javascript; charset=utf-8"
    for response in (index, script):
        assert response.headers["Content-Security-Policy"].startswith("default-src 'self'")
        assert response.headers["X-Content-Type-Options"] == "nosniff"
    for name in ("notes.txt", "secret.html", "..%2fsecret.html", "%2e%2e/secret.html", "%2fetc%2fpasswd", "none.js"):
        assert server.client.get(f"/static/{name}").status_code == 404, name
