"""`maskwright compare`: runs side by side, finished or not."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

import maskwright as mw


@pytest.fixture
def runs(trained_run: Path, tmp_path: Path) -> tuple[Path, Path]:
    """The second is the first with another learning rate, and unfinished."""
    folders = tmp_path / "a<b", tmp_path / "other"
    for folder in folders:
        shutil.copytree(trained_run, folder, ignore=shutil.ignore_patterns("checkpoints", "model"))
    values = yaml.safe_load((folders[1] / "config.yaml").read_text())
    values["optimizer"]["learning_rate"] = 0.125
    (folders[1] / "config.yaml").write_text(yaml.safe_dump(values))
    (folders[1] / "final.json").unlink()
    return folders


def test_figures_settings_and_curves_stand_beside_each_other(runs: tuple[Path, Path], tmp_path: Path) -> None:
    page = mw.compare(runs, tmp_path / "both.html")
    text = page.read_text()
    assert "a<b" not in text
    assert "<th>a&lt;b</th><th>other</th>" in text
    assert "<th>state</th><td>finished</td><td>not finished</td>" in text
    assert re.search(r"<th>optimizer.learning_rate</th><td>[\d.e-]+</td><td>0.125</td>", text)
    assert "Settings that differ: 1;" in text
    assert "run.name" not in text
    loss = text[text.index("<figcaption>Loss") :].partition("</figure>")[0]
    assert "stroke-0" in loss
    assert "stroke-1" in loss
    assert "a&lt;b, held-out" in loss
    assert loss.count('class="curve held-out') == 2
    assert loss.count('class="key points') == 2
    bars = text[text.index("Right answers") :]
    assert bars.count("<rect") >= 2
    assert "<script" not in text
    assert "http" not in text.replace("http://www.w3.org", "")


def test_parts_of_speech_stand_beside_each_other_where_both_know_them(runs: tuple[Path, Path], tmp_path: Path) -> None:
    for number, (folder, tags) in enumerate(zip(runs, (("NOUN", "X"), ("NOUN", "VERB")), strict=True)):
        kept = json.loads((folder / "insight.json").read_text())
        assert "Parts of speech" not in mw.compare(runs, tmp_path / f"{number}.html").read_text()
        kept["speech"] = [{"label": tag, "asked": 4, "right": 1} for tag in tags]
        (folder / "insight.json").write_text(json.dumps(kept))
    text = mw.compare(runs, tmp_path / "both.html").read_text().partition("Parts of speech")[2]
    assert text.count("<rect") == 4
    assert all(f">{tag}</text>" in text for tag in ("NOUN", "X", "VERB"))


def test_what_cannot_be_compared_is_refused(runs: tuple[Path, Path], tmp_path: Path, command) -> None:
    first, second = map(str, runs)
    out = str(tmp_path / "page.html")
    command("compare", first, "--out", out).assert_refused("1 of runs", "2 to 8")
    command("compare", first, str(tmp_path), "--out", out).assert_refused("is no run")
    command("compare", first, first, "--out", out).assert_refused("given twice")
    done = command("compare", first, second, "--out", out)
    assert (done.code, done.out) == (0, f"{out} is ready\n")
    command("compare", first, second, "--out", out).assert_refused("is there already", "--overwrite")
    assert command("compare", first, second, "--out", out, "--overwrite").code == 0
    with pytest.raises(mw.InputError, match="one of runs"):
        mw.compare(first)  # a string is no list of runs


def test_runs_of_one_name_are_told_apart_by_their_folders(runs: tuple[Path, Path], tmp_path: Path) -> None:
    for name, run in zip(("x", "y"), runs, strict=True):
        shutil.copytree(run, tmp_path / name / "mine")
    text = mw.compare([tmp_path / "x/mine", tmp_path / "y/mine"], tmp_path / "page.html").read_text()
    assert "<th>x/mine</th><th>y/mine</th>" in text
