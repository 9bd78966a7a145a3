from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from maskwright.config import build_config
from maskwright.inference.visualize import PredictionSample, PredictionView
from maskwright.runs.folder import RunFolder
from maskwright.runs.insight import Band, Insight
from maskwright.runs.report import format_figures, write_report

pytestmark = pytest.mark.draws

FIGURES: dict[str, Any] = {
    "loss": 3.25,
    "accuracy": 0.271,
    "perplexity": 25.8,
    "unigram_loss": 5.0,
    "num_masked": 1234,
    "tokens": 10_000,
    "steps": 50,
    "seconds": 4.0,
    "parameters": 77_000,
}
VIEW = PredictionView(
    [PredictionSample(["<b>", "dog"], ["[MASK]", "dog"], ["cat", "dog"], [True, False], [False, True])]
)


def test_the_loss_stands_beside_the_baseline() -> None:
    figures = format_figures(FIGURES)
    assert figures["held-out loss"] == "3.250 (1.75 nats under the unigram baseline 5.000)"
    worse = format_figures(FIGURES | {"loss": 5.5})
    assert worse["held-out loss"] == "5.500 (0.50 nats over the unigram baseline 5.000)"
    assert figures["masked accuracy"] == "27.1% of 1,234 held-out masked tokens"
    assert figures["trained on"] == "10,000 tokens in 50 steps, 4 s (2,500 tokens/s)"


def test_without_a_final_evaluation_the_cost_is_still_told() -> None:
    cost = {name: FIGURES[name] for name in ("tokens", "steps", "seconds", "parameters")}
    assert list(format_figures(cost)) == ["trained on", "parameters"]


def test_text_is_shown_and_never_becomes_markup(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    config = build_config({"data": {"train": "<script>x.txt"}})
    assert write_report(run, config, FIGURES, VIEW) == []
    text = run.report_file.read_text()
    assert "&lt;script&gt;x.txt" in text
    assert "&lt;b&gt;" in text
    assert "<script" not in text


def test_without_matplotlib_the_report_has_no_picture_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    run = RunFolder(tmp_path)
    (note,) = write_report(run, build_config({}), FIGURES, VIEW)
    assert "pip install 'maskwright[track]'" in note
    assert not run.curves_file.exists()
    assert "<img" not in run.report_file.read_text()
    assert "3.250" in run.report_file.read_text()


def test_curves_are_drawn_without_a_library_and_keep_their_extremes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    run = RunFolder(tmp_path)
    lines = [{"step": step, "loss": 5.0 - step / 10_000, "lr": 1e-3} for step in range(1, 20_001)]
    lines[7_000]["loss"] = 250.0
    lines += [{"step": 20_000, "val_loss": 3.5, "val_accuracy": None}]
    run.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_report(run, build_config({}), FIGURES, None)
    text = run.report_file.read_text()
    figures = re.findall(r"<figcaption>(.*?) <span", text)
    assert figures == ["Loss", "Learning rate"]
    assert len(text) < 200_000
    (line,) = re.findall(r'class="curve stroke-0" d="M([^"]*)"', text.split("Learning rate")[0])
    heights = [float(place.split()[1]) for place in line.split("L")]
    assert min(heights) < max(heights) - 150  # the one high value reaches the top of the picture
    assert 'class="dot fill-1"' in text
    assert "3.5" in text


def test_a_run_without_figures_has_a_report_without_curves(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.metrics_file.write_text('{"step": 1, "loss": null}\n{"step": 2, "epoch": 1}\n')
    write_report(run, build_config({}), FIGURES, None)
    assert "<svg" not in run.report_file.read_text()


def test_the_report_shows_what_the_model_learnt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    run = RunFolder(tmp_path)
    step = {"step": 5, "loss": 3.0, "grad_norm": 1.5, "mask_ratio": 0.3, "data_wait": 0.02}
    run.metrics_file.write_text(json.dumps(step) + "\n" + json.dumps(step | {"step": 10}) + "\n")
    words = [("the", -1.0, 0.0), ("<i>", 1.0, 1.0), ("hidden", -1.0, 0.01)]
    speech = [Band("NOUN", 1_200, 300), Band("X<", 0, 0)]
    insight = Insight([Band("often", 200, 150), Band("rare", 10, 0), Band("never", 0, 0)], words, 0.25, speech)
    write_report(run, build_config({}), FIGURES, VIEW, insight)
    text = run.report_file.read_text()
    for title in ("Gradient norm", "Mask ratio", "Share of time waiting for data", "Right answers by frequency"):
        assert f"<figcaption>{title} " in text
    bars = text.partition("Right answers by frequency")[2].partition("</figure>")[0]
    assert re.findall(r"<rect [^>]*>", bars)[0].count("height") == 1
    assert bars.count("<rect") == 2  # a band without a token has no bar
    assert ">75%</text><text" in bars.replace("\n", "")
    assert "often: 200, rare: 10" in text
    rows = text.partition("Right answers by part of speech")[2].partition("</figure>")[0]
    assert rows.count("<rect") == 1
    assert ">NOUN (1,200)</text>" in rows
    assert ">X&lt; (0)</text>" in rows
    assert ">25%</text><text" in rows.replace("\n", "")
    assert "25% of the variance" in text
    assert ">&lt;i&gt;</text>" in text
    assert "<title>hidden</title>" in text  # it would cover `the`
    assert "<i>" not in text
