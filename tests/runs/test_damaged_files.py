"""Damaged files of a run folder: each is named in one sentence, or left out with a warning; no traceback."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from maskwright.errors import InputError
from maskwright.runs.folder import RunFolder
from maskwright.storage import read_json, read_record
from maskwright.training.state import TrainingState

Command = Callable[..., Any]
DEEP = "[" * 100_000 + "]" * 100_000
DIGITS = "1" * 5_000
_NO_JSON = {"empty": "", "deep": DEEP, "a list": "[]", "null": "null", "digits": f'{{"step": {DIGITS}}}'}


@pytest.fixture
def broken(trained_run: Path, tmp_path: Path) -> Path:
    """A run that has stopped after its last checkpoint but one."""
    run = tmp_path / "broken"
    shutil.copytree(trained_run, run)
    (run / "final.json").unlink()
    shutil.rmtree(max((run / "checkpoints").glob("step-*"), key=lambda path: int(path.name.removeprefix("step-"))))
    return run


@pytest.fixture
def resume(command: Command, broken: Path, trained_run: Path) -> Callable[[], Any]:
    words = ("train", trained_run / "config.yaml", f"run.out={broken.parent}", f"run.name={broken.name}")
    return lambda: command(*words)


def find_newest(run: Path) -> Path:
    (newest,) = (run / "checkpoints").glob("step-*")
    return newest


def test_lines_of_metrics_that_are_no_records_are_left_out_with_a_warning(
    broken: Path, resume: Callable[[], Any]
) -> None:
    file = broken / "metrics.jsonl"
    first, *others = file.read_text().splitlines()
    damaged = ["123", "null", "{}", DEEP, DIGITS, f'{{"step": {DIGITS}}}', '{"step": true}']
    file.write_text("\n".join([first, *damaged, *others]) + "\n")
    result = resume()
    assert result.code == 0, result
    assert f"7 of {len(others) + 8} lines are damaged and are left out" in " ".join(result.out.split())


def test_numbers_that_no_figure_can_hold_are_damage(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.metrics_file.write_text(f'{{"step": 1, "loss": 1{"0" * 400}}}\n{{"step": -1}}\n{{"step": 2, "loss": 1.5}}\n')
    assert run.read_metrics() == [{"step": 2, "loss": 1.5}]


@pytest.mark.parametrize("text", _NO_JSON.values(), ids=_NO_JSON)
@pytest.mark.parametrize("name", ["data.json", "checksums.json", "state.json"])
def test_a_file_that_is_no_json_object_is_named(broken: Path, resume: Callable[[], Any], name: str, text: str) -> None:
    file = broken / name if name == "data.json" else find_newest(broken) / name
    file.write_text(text)
    if name == "state.json":
        seal(find_newest(broken))
    resume().assert_refused(name)


@pytest.mark.parametrize("text", [DEEP, "{}", f"a: {DIGITS}"], ids=["deep", "empty", "digits"])
def test_a_configuration_that_is_none_makes_a_folder_no_run(broken: Path, resume: Callable[[], Any], text: str) -> None:
    (broken / "config.yaml").write_text(text)
    resume().assert_refused("exists and is not a run")


def test_a_configuration_that_cannot_be_read_is_why_a_folder_is_no_run(broken: Path, resume: Callable[[], Any]) -> None:
    (broken / "config.yaml").write_text(DEEP)
    resume().assert_refused(f"is not a run that can be read: {broken / 'config.yaml'}, line 1: is nested more")


def test_a_mistake_in_the_configuration_of_a_run_names_its_file(broken: Path, resume: Callable[[], Any]) -> None:
    file = broken / "config.yaml"
    file.write_text(file.read_text().replace("epochs: 10\n", "epochs: many\n"))
    resume().assert_refused(f"{file}: configuration key 'training.epochs' is 'many'")


@pytest.mark.parametrize(
    "name",
    [
        "step-²",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("step-007", "step--1", "step-1e3")),
        "step-",
        "a file",
    ],
)
def test_what_is_no_checkpoint_is_left_aside_with_a_warning(
    command: Command, broken: Path, resume: Callable[[], Any], name: str
) -> None:
    stray = broken / "checkpoints" / ("step-400" if name == "a file" else name)
    stray.write_text("") if name == "a file" else stray.mkdir()
    filled = command("fill", broken, "the [MASK] sees")
    assert filled.code == 0, filled
    result = resume()
    assert result.code == 0, result
    assert f"checkpoint {stray.name} is unusable: it is not a folder step-N" in " ".join(result.out.split())


def seal(checkpoint: Path) -> None:
    """The checksums of what is there now."""
    files = [path for path in checkpoint.rglob("*") if path.is_file() and path.name != "checksums.json"]
    sums = {str(path.relative_to(checkpoint)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    (checkpoint / "checksums.json").write_text(json.dumps(sums))


@pytest.mark.parametrize("name", ["epoch_sums", "log_sums"])
def test_sums_of_another_number_of_figures_are_refused(broken: Path, resume: Callable[[], Any], name: str) -> None:
    file = find_newest(broken) / "state.json"
    values = json.loads(file.read_text())
    values["state"][name] = [1.0]
    file.write_text(json.dumps(values))
    seal(file.parent)
    resume().assert_refused("state.json has sums of", "go on from another checkpoint")


@pytest.mark.parametrize("field", [field.name for field in fields(TrainingState)])
def test_each_field_of_the_state_must_be_of_its_type(tmp_path: Path, field: str) -> None:
    for value in ("x", {}, True, [["x"]]):
        with pytest.raises(InputError, match=rf"state\.json is damaged: '{field}.*' is "):
            read_record(TrainingState, {"step": 3, field: value}, tmp_path / "state.json")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "has no figure 'steps'"),
        ('{"steps": "many"}', "has no figure 'steps'"),
        ('{"steps": 3, "loss": []}', "has no figure 'loss'"),
        (f'{{"steps": 1{"0" * 400}}}', "has no figure 'steps'"),
        ('{"steps": 3, "loss": 1.0, "forgetting": 0.1}', "has no figure 'max_forgetting'"),
        (DEEP, "is nested too deeply"),
    ],
)
def test_damaged_figures_are_named(tmp_path: Path, text: str, words: str) -> None:
    run = RunFolder(tmp_path)
    run.final_file.write_text(text)
    with pytest.raises(InputError, match=words):
        run.read_final()


def test_an_export_names_damaged_figures(
    command: Command, trained_run: Path, corpus_file: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained_run, run)
    (run / "final.json").write_text("{}")
    command("export", run, "--out", tmp_path / "exported", "--text", corpus_file).assert_refused(
        str(run / "final.json"), "restore it, or repeat the run's command with --overwrite"
    )


@pytest.mark.parametrize("text", _NO_JSON.values(), ids=_NO_JSON)
def test_json_that_cannot_be_read_is_said_in_a_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "file.json"
    file.write_text(text)
    with pytest.raises(InputError, match=r"file\.json (is not valid JSON: |holds a )") as refused:
        read_json(file)
    assert len(str(refused.value)) < len(str(file)) + 250
    assert "sys." not in str(refused.value)
