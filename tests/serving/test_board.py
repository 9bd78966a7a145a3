"""The board over HTTP: what it says of runs, and that names of runs lead to no other file."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from running import PATIENCE_S, Running, running

from maskwright.config import build_config
from maskwright.runs.pretrain import pretrain

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="session")
def runs(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of ours as it was trained, one that differs in a setting, and one whose texts are markup."""
    folder = tmp_path_factory.mktemp("board")
    secret = folder / "secret.jsonl"
    secret.write_text('{"step": 1, "loss": 42}\n')
    runs = folder / "runs"
    shutil.copytree(trained_run, runs / "tiny")
    shutil.copytree(trained_run, runs / "more" / "higher", ignore=shutil.ignore_patterns("final.json"))
    config = runs / "more" / "higher" / "config.yaml"
    config.write_text(config.read_text().replace("learning_rate: 0.003", "learning_rate: 0.03"))
    hostile = runs / HOSTILE
    hostile.mkdir()
    (hostile / "config.yaml").write_text(json.dumps({"run": {"name": HOSTILE}, "training": {HOSTILE: HOSTILE}}))
    (hostile / "data.json").write_text("{}")
    (hostile / "metrics.jsonl").write_text(json.dumps({"step": 1, "loss": 1.0, HOSTILE: 2.0}) + "\nbroken\n")
    (hostile / "final.json").write_text('{"loss": NaN, "steps": 1}')
    return runs


@pytest.fixture(scope="session")
def board(runs: Path) -> Iterator[Running]:
    with running([], board=runs) as one:
        yield one


def read(board: Running, path: str, **query: Any) -> Any:
    response = board.client.get(path, params=query)
    assert response.status_code == 200, response.text
    return response.json()


def read_raw(board: Running, path: str) -> tuple[int, str]:
    """The path as it is: other clients put a path with dots in order before they send it."""
    connection = HTTPConnection(board.url.removeprefix("http://"), timeout=PATIENCE_S)
    with closing(connection):
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()


def test_runs_are_listed_searched_and_sorted(board: Running) -> None:
    found = read(board, "/api/runs")
    assert {run["name"]: run["state"] for run in found} == {
        "tiny": "finished",
        "more/higher": "stopped",
        HOSTILE: "finished",
    }
    assert [run["name"] for run in read(board, "/api/runs", query="HIGHER pretrain")] == ["more/higher"]
    assert read(board, "/api/runs", query="nothing") == []
    response = board.client.get("/api/runs", params={"sort": "name", "descending": False, "limit": 1, "offset": 1})
    assert [run["name"] for run in response.json()] == ["more/higher"]
    assert response.headers["X-Total"] == "3"
    (tiny,) = read(board, "/api/runs", query="tiny")
    assert (tiny["step"], tiny["max_steps"], tiny["kind"]) == (12, 12, "pretrain")


def test_runs_without_a_value_come_last_in_either_direction(board: Running) -> None:
    for descending in (True, False):
        found = read(board, "/api/runs", sort="tokens_per_s", descending=descending)
        assert found[-1]["name"] == HOSTILE


def test_curves_are_those_of_the_file_and_only_new_points_follow(board: Running, runs: Path) -> None:
    lines = [json.loads(line) for line in (runs / "tiny" / "metrics.jsonl").read_text().splitlines()]
    expected = [[line["step"], line["loss"]] for line in lines if "loss" in line]
    response = board.client.get("/api/runs/tiny/metrics", params={"keys": "loss,nothing"})
    assert response.json() == {"loss": expected}
    assert response.headers["X-Read-Share"] == "1.0000"
    assert response.headers["X-Damaged-Lines"] == "0"
    later = read(board, "/api/runs/tiny/metrics", keys="loss", after_step=expected[0][0])
    assert later == {"loss": expected[1:]}
    assert "val_loss" in read(board, "/api/runs/more/higher/metrics")
    assert board.client.get(f"/api/runs/{HOSTILE}/metrics").headers["X-Damaged-Lines"] == "1"


def test_details_have_settings_figures_and_the_course(board: Running) -> None:
    details = read(board, "/api/runs/tiny")
    assert details["settings"]["model.hidden_size"] == 32
    assert details["final"]["steps"] == 12
    assert details["events"][0]["text"] == "begun"
    assert details["events"][-1]["text"] == "finished"
    assert any("checkpoint step-12" in event["text"] for event in details["events"])


def test_settings_that_differ_are_compared(board: Running) -> None:
    differing = read(board, "/api/runs/diff", names="tiny,more/higher")
    assert differing["names"] == ["tiny", "more/higher"]
    assert differing["settings"] == {"optimizer.learning_rate": [0.003, 0.03]}
    assert differing["num_same"] > 50
    assert read(board, "/api/runs/diff", names="tiny")["settings"] == {}


def test_held_out_predictions_are_kept_at_every_evaluation(board: Running) -> None:
    moments = read(board, "/api/runs/tiny/predictions")
    steps = [moment["step"] for moment in moments]
    assert steps == sorted(set(steps))
    assert steps[-1] == 12
    for sample in moments[-1]["samples"]:
        lengths = {len(sample[key]) for key in ("original", "masked", "predicted", "selected", "correct")}
        assert len(lengths) == 1
        assert any(sample["selected"])
    assert moments[0]["samples"][0]["masked"] == moments[-1]["samples"][0]["masked"]
    assert read(board, f"/api/runs/{HOSTILE}/predictions") == []


def test_a_resumed_run_tells_each_moment_once(tiny_values: dict[str, Any], tmp_path: Path) -> None:
    from rich.console import Console

    from maskwright.runs.folder import RunFolder
    from maskwright.runs.predictions import read_predictions

    tiny_values["training"] |= {"evaluate_every_steps": 3}
    run = RunFolder(tmp_path / "runs" / "tiny")
    pretrain(build_config(tiny_values), console=Console(quiet=True))
    whole = read_predictions(run)
    run.final_file.unlink()
    shutil.rmtree(run.checkpoints / "step-12")
    pretrain(build_config(tiny_values), console=Console(quiet=True))
    assert read_predictions(run) == whole
    assert len(run.predictions_file.read_text().splitlines()) == len(whole)


def test_figures_that_are_no_numbers_become_null(board: Running) -> None:
    details = read(board, f"/api/runs/{HOSTILE}")
    assert details["final"] == {"loss": None, "steps": 1}
    assert not any(isinstance(value, float) and math.isnan(value) for value in details.values())


def test_markup_stays_text_in_json(board: Running) -> None:
    response = board.client.get("/api/runs")
    assert response.headers["content-type"] == "application/json"
    assert HOSTILE in response.text


@pytest.mark.parametrize(
    "name",
    [
        "..",
        "../runs/tiny",
        "tiny/../tiny",
        "..%2fruns%2ftiny",
        "%2e%2e/%2e%2e/etc/passwd",
        "%2fetc%2fpasswd",
        "tiny/..%2f..%2fsecret.jsonl",
        "tiny%00",
        "tiny/checkpoints",
        "tiny/metrics.jsonl",
        "more",
        "%5c..%5cruns",
        "~root",
        "x" * 5_000,
    ],
)
@pytest.mark.parametrize("ending", ["", "/metrics", "/predictions"])
def test_names_that_are_no_runs_lead_nowhere(board: Running, name: str, ending: str) -> None:
    status, text = read_raw(board, f"/api/runs/{name}{ending}")
    assert status == 404, text
    assert "there is no " in text
    assert len(text) < 500


def test_bad_questions_get_a_sentence(board: Running) -> None:
    for path, sentence in (
        ("/api/runs?sort=nothing", "choose one of name"),
        ("/api/runs?limit=0", "limit"),
        ("/api/runs/tiny/metrics?points=1", "points"),
        ("/api/runs/diff?names=tiny,absent", "no run 'absent'"),
        (f"/api/runs/diff?names={','.join(['tiny'] * 50)}", "at most 20"),
    ):
        response = board.client.get(path)
        assert response.status_code in (404, 422)
        assert sentence in response.json()["error"]["message"]


def test_the_page_of_the_board_loads_nothing_from_elsewhere(board: Running) -> None:
    response = board.client.get("/board")
    assert response.status_code == 200
    assert "default-src 'self'" in response.headers["content-security-policy"]
    page = Path(__file__).parents[2] / "src" / "maskwright" / "serving" / "page"
    for file in page.iterdir():
        text = file.read_text(encoding="utf-8")
        others = text.replace("http://www.w3.org/", "")
        assert "http://" not in others, file
        assert "https://" not in others, file
        assert not any(word in text for word in ("innerHTML", "insertAdjacentHTML", "document.write", "eval(")), file
    for html in page.glob("*.html"):
        assert " style=" not in html.read_text()
        assert " onclick=" not in html.read_text()


def test_a_key_guards_the_runs_but_not_the_empty_page(runs: Path) -> None:
    with running([], board=runs, api_key="secret") as one:
        assert one.client.get("/board").status_code == 200
        assert one.client.get("/static/board.js").status_code == 200
        assert one.client.get("/api/runs").status_code == 401
        assert one.client.get("/api/runs", headers={"Authorization": "Bearer secret"}).status_code == 200


def test_without_a_board_there_is_none() -> None:
    with running([]) as one:
        assert one.client.get("/board").status_code == 404
        assert one.client.get("/api/runs").status_code == 404
