"""Names and texts of files are printed without what a terminal would take for commands."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from maskwright.config import load_config
from maskwright.inference.outputs import format_json
from maskwright.runs.pretrain import pretrain
from maskwright.terminal import CleanConsole, clean, echo, escape_json, open_terminal

HOSTILE = "a\x1b[31mb\x07c\x9b2Jd\re\x7f\udce9\u202ef\u2066\u2028"
HARMLESS = "a�[31mb�c�2Jd�e���f��"
_FORBIDDEN = set("\x1b\x07\x9b\r\x7f\udce9\u202e\u2066\u2028")


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


def use_streams(monkeypatch: pytest.MonkeyPatch, encoding: str) -> tuple[BytesIO, BytesIO]:
    """Output and errors as a terminal of this encoding gets them; Python opens such streams as strict ones."""
    raw = BytesIO(), BytesIO()
    for name, stream in zip(("stdout", "stderr"), raw, strict=True):
        monkeypatch.setattr(f"sys.{name}", TextIOWrapper(stream, encoding=encoding))
    return raw


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        ("ascii", b"gr\\u00f6\\u00dfer \\u6f22 \\ud83d\\ude42\n"),
        ("latin-1", b"gr\xf6\xdfer \\u6f22 \\ud83d\\ude42\n"),
        ("utf-8", "größer 漢 🙂\n".encode()),
    ],
)
def test_what_an_encoding_lacks_is_escaped_as_json_does(
    monkeypatch: pytest.MonkeyPatch, encoding: str, expected: bytes
) -> None:
    streams = use_streams(monkeypatch, encoding)
    open_terminal()
    for err in (False, True):
        echo("größer 漢 🙂", err=err)
        assert streams[err].getvalue() == expected


@pytest.fixture(scope="module")
def foreign_run(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on words that neither ASCII nor Latin-1 has, with its texts beside it."""
    folder = tmp_path_factory.mktemp("foreign")
    words = ("Straße", "漢字", "дом", "🙂", "größer")
    lines = (f"{words[number % 5]} {words[number % 3]} {words[number % 4]} {number}." for number in range(60))
    (folder / "texts.txt").write_text("\n".join(lines), encoding="utf-8")
    settings = [f"data.train={folder / 'texts.txt'}", f"run.out={folder}", "training.max_steps=1"]
    return pretrain(load_config(trained_run / "config.yaml", settings), console=Console(quiet=True)).folder.path


@pytest.mark.parametrize("encoding", ["ascii", pytest.param("latin-1", marks=pytest.mark.slow)])
@pytest.mark.parametrize("verb", ["train", "fill", "fill --json", "eval", "refused"])
def test_commands_speak_on_terminals_of_any_encoding(
    monkeypatch: pytest.MonkeyPatch, trained_run: Path, foreign_run: Path, encoding: str, verb: str
) -> None:
    pairs = foreign_run.parent / "漢字.jsonl"
    pair = {"sentence_good": "the cat", "sentence_bad": "cat the", "field": "漢字"}
    pairs.write_text(json.dumps(pair) + "\n", encoding="utf-8")
    words = {
        "train": ["train", foreign_run / "config.yaml", "run.name=again", "--overwrite"],
        "fill": ["fill", foreign_run, "[MASK] 漢字", "--top-k", 30],
        "fill --json": ["fill", foreign_run, "[MASK] 漢字", "--top-k", 30, "--json"],
        "eval": ["eval", trained_run, "minimal-pairs", pairs],
        "refused": ["fill", foreign_run.parent / "漢字", "[MASK]"],
    }
    from maskwright.cli.app import main

    monkeypatch.setattr("sys.argv", ["maskwright", *map(str, words[verb])])
    streams = use_streams(monkeypatch, encoding)
    with pytest.raises(SystemExit) as end:
        main()
    out, err = (stream.getvalue().decode(encoding) for stream in streams)
    assert int(end.value.code or 0) == (2 if verb == "refused" else 0), err
    assert re.search(r"\\u[0-9a-f]{4}", err if verb == "refused" else out), "the test needs such characters"
    if verb == "fill --json":
        assert "漢" in json.dumps(json.loads(out), ensure_ascii=False)


def test_hostile_names_in_tables_and_tokens_do_not_reach_the_terminal(
    command: Callable[..., Any], trained_run: Path, tmp_path: Path
) -> None:
    pairs = tmp_path / "pairs.jsonl"
    fields = {"linguistics_term": HOSTILE, "field": HOSTILE, "UID": HOSTILE}
    pair = {"sentence_good": f"the cat {HOSTILE[:5]}", "sentence_bad": "cat the", **fields}
    pair |= {name: value.replace("\udce9", "") for name, value in pair.items()}
    pairs.write_text(json.dumps(pair) + "\n", encoding="utf-8")
    labelled = tmp_path / "labelled.jsonl"
    lines = [{"text": f"the cat {number}", "label": f"{number % 2}{HOSTILE}"} for number in range(8)]
    labelled.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"the x\x1by\u202ez cat {number}\n" for number in range(60)), encoding="utf-8")
    hostile = HOSTILE.replace("\udce9", "")
    for words in (
        ("eval", trained_run, "minimal-pairs", pairs),
        ("eval", trained_run, "embeddings", labelled),
        ("tokenizer", "advise", trained_run / "model", texts, "--min-count", 2),
        ("tokenizer", "show", trained_run / "model", hostile),
        ("fill", trained_run, f"{hostile} [MASK]"),
        ("predict", "fill-mask", trained_run, f"{hostile} [MASK]"),
        ("models", "show", hostile),
        ("train", f"run.name={hostile}"),
        (hostile,),
    ):
        result = command(*words)
        assert not _FORBIDDEN & set(result.out + result.err), words
        assert result.out + result.err
