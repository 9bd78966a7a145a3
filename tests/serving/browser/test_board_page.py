"""The board in a real browser: runs that stand still, and a run that trains meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from looking import PHONE, write_run

pytestmark = pytest.mark.slow
HOSTILE = "<img src=x onerror=\"document.title='hacked'\">"
NUM_POINTS = "(document.querySelector('.chart path.curve')?.getAttribute('d').match(/[ML]/g) ?? []).length"
STATES = "[...document.querySelectorAll('#rows .badge')].map((one) => one.innerText)"


def test_runs_are_searched_sorted_and_laid_over_each_other(board: Any, runs_folder: Path) -> None:
    for number in range(12):
        write_run(runs_folder / f"run-{number}", 5 + number, optimizer={"learning_rate": number / 1000})
    board.open("/board")
    board.wait("document.querySelectorAll('#rows tr').length === 12")
    board.write("#query", "run-1")
    board.wait("document.querySelectorAll('#rows tr').length === 3")
    board.click("th[aria-sort] .sort")
    board.wait("document.querySelector('th[aria-sort=ascending]')")
    board.wait("document.querySelector('#rows tr th').innerText === 'run-1'")
    board.click("#clear")
    for name in ("run-1", "run-11"):
        board.click(f"input[aria-label='Show {name}']")
    board.wait("document.querySelectorAll('.chart:first-child path.curve').length === 2")
    assert [chip.text[:-1] for chip in board.find_all("#chosen-runs .chip")] == ["run-1", "run-11"]
    board.click("#tab-settings")
    board.wait("document.querySelector('#panel table')")
    assert board.run("return [...document.querySelectorAll('#panel tbody td')].map((cell) => cell.innerText)") == [
        "0.001",
        "0.011",
    ]
    board.run("location.reload()")
    board.wait("document.querySelector('#tab-settings[aria-selected=true]')")
    board.wait("document.querySelectorAll('#chosen-runs li').length === 2")
    board.check_nothing_failed()


def test_scales_axes_and_smoothing_change_the_curves(board: Any, runs_folder: Path) -> None:
    write_run(runs_folder / "one", 60)
    board.open("/board")
    board.wait(f"{NUM_POINTS} === 60")
    read = "return document.querySelector('.chart path.curve').getAttribute('d')"
    seen = {board.run(read)}
    board.click("#log-scale")
    seen.add(board.run(read))
    board.run("const s = document.querySelector('#smoothing'); s.value = 80; s.dispatchEvent(new Event('input'))")
    seen.add(board.run(read))
    assert board.find_all(".chart path.raw")
    board.run("const s = document.querySelector('#axis'); s.value = 'tokens'; s.dispatchEvent(new Event('change'))")
    assert len(seen) == 3
    assert any("k" in tick.text for tick in board.find_all(".chart .tick"))
    board.check_nothing_failed()


@pytest.mark.parametrize("tab", ["curves", "settings", "predictions", "details"])
def test_every_tab_fits_a_phone(board: Any, runs_folder: Path, tab: str) -> None:
    write_run(runs_folder / ("a-run-with-a-name-that-is-long-" * 3), 30, model={"from": "x" * 200})
    board.open(f"/board#tab={tab}", PHONE)
    board.wait("document.querySelector('#panel')?.innerText.length > 20")
    board.check_fits()
    board.check_nothing_failed()


def test_names_and_settings_stay_text(board: Any, runs_folder: Path) -> None:
    write_run(runs_folder / HOSTILE, 5, **{HOSTILE: HOSTILE})
    (runs_folder / HOSTILE / "metrics.jsonl").open("a").write(json.dumps({"step": 60, HOSTILE: 1.0}) + "\n")
    sample = {
        "original": ["a", HOSTILE],
        "masked": ["a", "[MASK]"],
        "predicted": ["a", HOSTILE],
        "selected": [False, True],
        "correct": [False, False],
    }
    (runs_folder / HOSTILE / "predictions.jsonl").write_text(json.dumps({"step": 5, "samples": [sample]}) + "\n")
    for tab in ("curves", "settings", "predictions", "details"):
        board.open(f"/board#tab={tab}")
        board.wait("document.querySelector('#rows th')?.innerText === arguments[0]", HOSTILE)
        board.wait("document.querySelector('#panel')?.innerText.length > 20")
        assert board.run("return document.querySelectorAll('img[src=x]').length") == 0
        assert board.run("return document.title") == "Runs · Maskwright"
    board.check_nothing_failed()


def test_a_missing_folder_of_a_link_is_said_in_words(board: Any, runs_folder: Path) -> None:
    write_run(runs_folder / "one", 5)
    board.open("/board#run=gone")
    board.wait("document.querySelector('#panel')?.innerText.includes('There is no run')")


@pytest.mark.timeout(900)
def test_a_run_is_followed_while_it_trains(
    board: Any, runs_folder: Path, build_tiny_values: Callable[[Path], dict[str, Any]], tmp_path: Path
) -> None:
    values = build_tiny_values(runs_folder)
    values["training"] |= {"epochs": 100_000, "max_steps": 100_000, "log_every_steps": 2, "evaluate_every_steps": 10}
    values["training"]["checkpoint_every_steps"] = 50
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    command = [sys.executable, "-m", "maskwright", "train", str(tmp_path / "config.yaml")]
    board.patience_s = 400
    board.open("/board")
    board.wait("document.querySelector('#count').innerText.startsWith('No runs here yet')")
    with subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL) as training:
        try:
            board.wait(f"{STATES}[0] === 'running'")
            board.wait(f"{NUM_POINTS} > 5")
            before = board.run(f"return {NUM_POINTS}")
            board.wait(f"{NUM_POINTS} > arguments[0]", before)
            board.click("#tab-predictions")
            board.wait("document.querySelector('.samples .guess')")
            last = board.text(".moment output")
            board.wait("document.querySelector('.moment output').innerText !== arguments[0]", last)
        finally:
            training.send_signal(signal.SIGTERM)
            training.wait(120)
    board.wait(f"{STATES}[0] === 'stopped'")
    board.click("#tab-details")
    board.wait("document.querySelector('.course')?.innerText.includes('checkpoint step-')")
    board.check_nothing_failed()


def test_curves_are_thinned_and_joined_without_losing_extremes(board: Any) -> None:
    board.open("/board")
    points = [[x, 1.0] for x in range(5_000)]
    points[1_234][1], points[4_321][1] = 99.0, -99.0
    thinned = board.call("charts.js", "m.thinPoints(v[0], 200)", points)
    assert len(thinned) <= 201
    assert [1_234, 99] in thinned
    assert [4_321, -99] in thinned
    assert thinned[-1] == points[-1]
    assert board.call("charts.js", "m.thinPoints(v[0], 200)", [[1, 2]]) == [[1, 2]]
    assert board.call("charts.js", "m.joinPoints([[1, 1], [2, 2]], [[2, 5], [3, 3]])") == [[1, 1], [2, 5], [3, 3]]
    assert board.call("charts.js", "m.smoothPoints([[1, 0], [2, 3], [3, 0]], 0.7)") == [[1, 0], [2, 1], [3, 0]]
    assert board.call("charts.js", "m.changeAxis([[5, 1], [15, 2]], [[0, 0], [10, 100], [20, 300]])") == [
        [50, 1],
        [200, 2],
    ]
    assert board.call("charts.js", "m.chooseTicks(0, 10, 5)") == [0, 2, 4, 6, 8, 10]
