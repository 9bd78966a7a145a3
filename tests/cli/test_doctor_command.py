from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]


@pytest.fixture
def words(tiny_command: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr("maskwright.runs.doctor.step._MOST_TIMED", 2)
    return ["doctor", *tiny_command[1:], "training.precision=fp32"]


def test_it_takes_the_words_of_train_and_ends_with_a_verdict(command: Command, words: list[str]) -> None:
    result = command(*words, "training.max_steps=7")
    assert (result.code, result.err) == (0, "")
    assert "about 7 steps" in result.out
    assert result.out.splitlines()[-1].startswith("OK with ")


def test_a_problem_is_exit_code_two(command: Command, words: list[str]) -> None:
    result = command(*words, "training.keep_optimizer=true")
    assert (result.code, result.err) == (2, "")
    assert "problem settings  training.keep_optimizer needs model.from" in result.out
    assert result.out.splitlines()[-1] == "1 problem"


def test_json_is_the_whole_report(command: Command, words: list[str]) -> None:
    result = command(*words, "--json")
    report = json.loads(result.out)
    assert result.code == 0
    assert report["summary"] == f"OK with {report['num_warnings']} warnings"
    assert (report["verdict"], report["num_problems"]) == ("warning", 0)
    assert {"area", "verdict", "text", "advice"} == set(report["findings"][0])
    assert len(report["example"]["seen"]) == len(report["example"]["selected"])


def test_a_configuration_that_cannot_be_read_is_refused(command: Command, tmp_path: Path) -> None:
    command("doctor", tmp_path / "none.yaml").assert_refused("no configuration file")
    command("doctor", "training.epoch=1").assert_refused("unknown configuration key", "did you mean")
    command("doctor", "data.train=nowhere.txt").assert_refused("nowhere.txt")


def test_help_shows_an_example(command: Command) -> None:
    result = command("doctor", "--help")
    assert (result.code, result.err) == (0, "")
    assert "maskwright doctor config.yaml" in result.out
