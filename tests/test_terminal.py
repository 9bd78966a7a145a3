"""Names and texts of files are printed without what a terminal would take for commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.table import Table
from rich.text import Text

from maskwright.inference.outputs import format_json
from maskwright.terminal import CleanConsole, clean, echo, escape_json

HOSTILE = "a\x1b[31mb\x07c\x9b2Jd\re\x7f\udce9"
HARMLESS = "a�[31mb�c�2Jd�e��"


def test_control_characters_are_replaced_and_lines_and_tabs_stay() -> None:
    assert clean(HOSTILE) == HARMLESS
    assert clean("größer\t漢字\n🙂") == "größer\t漢字\n🙂"


@pytest.mark.parametrize("err", [True, False])
def test_what_is_echoed_is_clean(capsys: pytest.CaptureFixture[str], err: bool) -> None:
    echo(HOSTILE, err=err)
    captured = capsys.readouterr()
    assert (captured.err if err else captured.out) == f"{HARMLESS}\n"


def test_a_console_keeps_its_own_colours_and_cleans_what_it_prints() -> None:
    console = CleanConsole(file=StringIO(), force_terminal=True, color_system="standard", width=100)
    table = Table(HOSTILE)
    table.add_row(f"cell {HOSTILE}")
    for printed in (HOSTILE, Text(HOSTILE, style="red"), table):
        console.print(printed, style="bold", markup=False)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[1m" in said
    assert "\x1b[1;31m" in said
    assert "\x1b[31m" not in said
    assert not set("\x07\x9b\r\x7f\udce9") & set(said)


def test_json_keeps_its_meaning() -> None:
    record = {"text": HOSTILE, "größer": "漢字"}
    said = format_json(record)
    assert clean(said) == said
    assert "größer" in said
    assert json.loads(said) == record
    assert escape_json('"\x7f"') == '"\\u007f"'


@pytest.mark.parametrize("place", ["column", "file name", "label"])
def test_hostile_files_do_not_reach_the_terminal(
    command: Callable[..., Any], trained_run: Path, tmp_path: Path, place: str
) -> None:
    hostile = "te\x1b]0;owned\x07xt"
    name = f"{hostile}.csv" if place == "file name" else "a.csv"
    (tmp_path / name).write_text(f"{hostile},label\nthe cat,{hostile}\na dog,good\n", encoding="utf-8")
    if place == "label":
        files = ("--train", tmp_path / name, "--validation", tmp_path / name, "--text-column", hostile)
        result = command(
            "finetune", "classification", "--model", trained_run, *files, "--epochs", 1, "--out", tmp_path / "out"
        )
        assert result.code == 0, result.err
    else:
        result = command("predict", "embed", trained_run, tmp_path / name)
        result.assert_refused("has no column 'text'")
    said = result.out + result.err
    assert "te�]0;owned" in said
    assert not set("\x1b\x07") & set(said)
