from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from maskwright.cli.prepare import prepare_wiki
from maskwright.errors import InputError

pytest.importorskip("mwparserfromhell", reason="the `wiki` extra is not installed")

DUMP = """<mediawiki><page><title>x</title><ns>0</ns><revision><text>'''one''' [[b|two]] three</text></revision></page>
<page><title>y</title><ns>1</ns><revision><text>talk</text></revision></page></mediawiki>"""


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    app.command()(prepare_wiki)
    return app


def test_the_command_writes_the_text_and_shows_the_counts(app: typer.Typer, tmp_path: Path) -> None:
    dump, output = tmp_path / "dump.xml", tmp_path / "text.txt"
    dump.write_text(DUMP)
    words = [
        str(dump),
        str(output),
        "--min-length",
        "3",
        "--max-length",
        "9",
        "--workers",
        "1",
        "--page-time-limit",
        "9",
    ]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert output.read_text() == "one two three\n"
    shown = re.sub(r"\s+", " ", result.output)
    for expected in ["pages 2", "kept 1", "dropped 1", "1 other namespace", "paragraphs 1 written, 3 words"]:
        assert expected in shown
    again = CliRunner().invoke(app, words)
    assert isinstance(again.exception, InputError)
    assert "--overwrite" in str(again.exception)
    assert CliRunner().invoke(app, [*words, "--overwrite"]).exit_code == 0


def test_the_help_shows_an_example(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert "maskwright prepare wiki enwiki-latest-pages-articles.xml.bz2" in re.sub(r"\s+", " ", result.output)
