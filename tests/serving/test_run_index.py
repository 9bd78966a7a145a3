"""Which runs a folder has and what state they are in."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from maskwright.errors import InputError
from maskwright.ownership import LOCK_FILE, is_owned, owning
from maskwright.serving import run_index
from maskwright.serving.run_index import RunIndex

BuildRun = Callable[..., Path]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder


@pytest.fixture
def build_run(runs: Path) -> BuildRun:
    def build(name: str, final: dict[str, Any] | None = None, num_lines: int = 2) -> Path:
        folder = runs / name
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text("training:\n  max_steps: 100\nmodel: {hidden_size: 32}\n")
        (folder / "data.json").write_text("{}")
        lines = [
            {"step": step, "loss": 5.0 - step, "progress": step / 100, "elapsed_s": 2.0 * step}
            for step in range(1, num_lines + 1)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        if final is not None:
            (folder / "final.json").write_text(json.dumps(final))
        return folder

    return build


@pytest.fixture(autouse=True)
def _every_look_is_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_index, "_FRESH_S", -1.0)


def find_state(index: RunIndex, name: str) -> str:
    run = index.find(name)
    assert run is not None
    return run.state


def test_runs_are_found_at_any_depth_under_their_paths(runs: Path, build_run: BuildRun) -> None:
    for name in ("one", "glue/CoLA/seed-0", "glue/CoLA/seed-1"):
        build_run(name)
    (build_run("two") / "model").mkdir()
    (runs / "notes").mkdir()
    (runs / "notes" / "config.yaml").write_text("mine: true\n")
    build_run(".hidden/three")
    index = RunIndex(runs)
    assert {run.name for run in index.list_runs()} == {"one", "two", "glue/CoLA/seed-0", "glue/CoLA/seed-1"}


def test_a_folder_that_is_a_run_itself_is_shown(runs: Path, build_run: BuildRun) -> None:
    folder = build_run("one")
    assert [run.name for run in RunIndex(folder).list_runs()] == ["one"]


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no folder"):
        RunIndex(tmp_path / "nothing")


def test_runs_appear_change_and_go_while_one_watches(runs: Path, build_run: BuildRun) -> None:
    index = RunIndex(runs)
    assert index.list_runs() == []
    folder = build_run("one")
    assert find_state(index, "one") == "stopped"
    with owning(folder, lock=folder / LOCK_FILE):
        assert find_state(index, "one") == "running"
        (folder / "metrics.jsonl").open("a").write('{"step": 9, "val_loss": 1.25}\n')
        run = index.find("one")
        assert run is not None
        assert (run.last["step"], run.last["loss"], run.last["val_loss"]) == (9, 3.0, 1.25)
    assert find_state(index, "one") == "stopped"
    (folder / "final.json").write_text('{"loss": 1.0, "steps": 9}')
    assert find_state(index, "one") == "finished"
    (folder / "final.json").write_text('{"loss": 9.0, "trouble": "the loss has diverged"}')
    os.utime(folder)
    assert find_state(index, "one") == "failed"
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    assert index.list_runs() == []


def test_seeds_run_while_the_folder_around_them_is_owned(runs: Path, build_run: BuildRun) -> None:
    build_run("seeds/seed-0", final={"loss": 1.0})
    build_run("seeds/seed-1")
    index = RunIndex(runs)
    with owning(runs / "seeds", lock=runs / "seeds" / LOCK_FILE):
        assert (find_state(index, "seeds/seed-0"), find_state(index, "seeds/seed-1")) == ("finished", "running")
    assert find_state(index, "seeds/seed-1") == "stopped"


def test_a_lock_without_a_living_owner_does_not_count(tmp_path: Path) -> None:
    lock = tmp_path / LOCK_FILE
    assert not is_owned(lock)
    lock.write_text(json.dumps({"host": "another", "process": 1}))
    assert is_owned(lock)
    os.utime(lock, (time.time() - 60, time.time() - 60))
    assert not is_owned(lock)
    lock.write_text(json.dumps({"host": socket.gethostname(), "process": 2**22 + 1}))
    assert not is_owned(lock)
    lock.write_text("")
    assert not is_owned(lock)


def test_to_watch_a_lock_does_not_take_it(runs: Path, build_run: BuildRun) -> None:
    folder = build_run("one")
    index = RunIndex(runs)
    with owning(folder, lock=folder / LOCK_FILE):
        assert find_state(index, "one") == "running"
    with owning(folder, lock=folder / LOCK_FILE):
        assert find_state(index, "one") == "running"


def test_links_out_of_the_folder_are_not_followed(runs: Path, build_run: BuildRun, tmp_path: Path) -> None:
    build_run("one")
    outside = (runs / "one").rename(tmp_path / "outside")
    (runs / "link").symlink_to(outside, target_is_directory=True)
    partly = build_run("partly", final={"loss": 1.0})
    for name in ("final.json", "metrics.jsonl"):
        (partly / name).unlink()
        (partly / name).symlink_to(outside / name)
    index = RunIndex(runs)
    (run,) = index.list_runs()
    assert run.name == "partly"
    assert (run.final, run.last, run.state) == (None, {}, "unknown")


@pytest.mark.parametrize("content", ["", "{", "[]", "{" * 10_000, '"text"', "\x00"])
def test_damaged_files_leave_the_others_as_they_are(runs: Path, build_run: BuildRun, content: str) -> None:
    build_run("good", final={"loss": 1.0})
    folder = build_run("bad", final={})
    for name in ("config.yaml", "metrics.jsonl", "final.json", LOCK_FILE):
        (folder / name).write_text(content)
    index = RunIndex(runs)
    assert {run.name: run.state for run in index.list_runs()} == {"good": "finished", "bad": "failed"}
    bad = index.find("bad")
    assert bad is not None
    assert index.read_settings(bad) == {}


def test_what_did_not_change_is_not_read_again(
    runs: Path, build_run: BuildRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        folder = build_run(f"run-{number}", final={"loss": 1.0})
        os.utime(folder, (1_000_000, 1_000_000))
    index = RunIndex(runs)
    assert len(index.list_runs()) == 5
    read: list[Path] = []
    monkeypatch.setattr(run_index, "read_last_values", lambda file: read.append(file) or {})
    monkeypatch.setattr(run_index, "_read_final", lambda file: read.append(file) or {})
    (runs / "run-3" / "metrics.jsonl").open("a").write('{"step": 50}\n')
    assert len(index.list_runs()) == 5
    assert read == [runs.resolve() / "run-3" / "metrics.jsonl"]


def test_the_time_left_follows_from_progress(runs: Path, build_run: BuildRun) -> None:
    folder = build_run("one", num_lines=25)
    index = RunIndex(runs)
    with owning(folder, lock=folder / LOCK_FILE):
        run = index.find("one")
    assert run is not None
    assert run.seconds_left == pytest.approx(150.0)
