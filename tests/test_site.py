"""The documentation site: every page has its place, links lead somewhere, and references name what the code has."""

from __future__ import annotations

import collections
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from website.pages import list_navigation, read_site_settings, write_pages

import maskwright
from maskwright.config import Config

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
RUN = {"sh", "console", "python", "yaml"}
"""The languages of blocks that `make journeys` runs."""
SHOWN = {"", "ini", "dockerfile"}
"""Blocks that show what a program prints, and files of programs that are not ours."""
FENCE = re.compile(r"^( *)```(.*)$", re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    write_pages(folder)
    return folder


def test_every_page_is_in_the_navigation_once(folder: Path) -> None:
    places = [place for _, place in list_navigation(read_site_settings()["nav"])]
    assert collections.Counter(places) == {path.relative_to(folder).as_posix(): 1 for path in folder.rglob("*.md")}
    assert {path.name for path in PAGES} <= set(places)


def test_links_of_the_site_lead_to_its_files(folder: Path) -> None:
    pages = sorted(folder.rglob("*.md"))
    links = {
        page: re.findall(r"\]\(((?!\w+:|#)[^)\s#]+)", re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.S))
        for page in pages
    }
    assert [(page.name, link) for page in pages for link in links[page] if not (page.parent / link).is_file()] == []
    assert sum(map(len, links.values())) > 100
    assert (folder / "files/recipes/electra.yaml").is_file()


def test_the_reference_has_every_name_command_and_setting(folder: Path) -> None:
    text = "\n".join(page.read_text("utf-8") for page in (folder / "reference/api").glob("*.md"))
    names = re.findall(r"^::: (\S+)\.(\w+)$", text, re.MULTILINE)
    assert sorted(name for _, name in names) == sorted(set(maskwright.__all__) - {"__version__"})
    settings = (folder / "reference/settings.md").read_text("utf-8")
    for section, field in Config.model_fields.items():
        for key in getattr(field.annotation, "model_fields", ()):
            assert f"`{section}.{'from' if key == 'from_' else key}`" in settings
    assert re.findall(r"^\| `.*\| \|$", settings, re.MULTILINE) == []  # each with its line of help
    commands = (folder / "reference/commands.md").read_text("utf-8")
    for name in ("train", "adapt", "eval", "prepare wiki", "tokenizer show", "models choose"):
        assert f"## maskwright {name}\n" in commands
    assert "\nmaskwright adapt [OPTIONS] MODEL [FILES...] [KEY=VALUE ...]\n" in commands
    assert "\nmaskwright search [OPTIONS] INDEX [QUERY...]\n" in commands
    tables = re.findall(
        r"^\| option \| default \| meaning \|\n\|---\|---\|---\|\n((?:\|.*\n)+)", commands, re.MULTILINE
    )
    assert tables
    assert [table for table in tables if not re.search(r"^\|[^|]*\| `", table, re.MULTILINE)] == []


def test_llms_txt_lists_every_page_with_its_text(folder: Path) -> None:
    lines = re.findall(r"^- \[[^\]]+\]\(([^)]+)\): \S", (folder / "llms.txt").read_text("utf-8"), re.MULTILINE)
    assert len(lines) == len(list(folder.rglob("*.md")))
    assert [line for line in lines if line.endswith(".txt") and not (folder / line).is_file()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_is_one_that_journeys_run_or_shows_output(page: Path) -> None:
    openings = FENCE.findall(page.read_text("utf-8"))[::2]
    assert [fence for fence in openings if fence[0] or fence[1] not in RUN | SHOWN] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_nested_lists_are_indented_as_the_site_needs_it(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert re.findall(r"^ {1,3}[-*] .*$", text, re.MULTILINE) == []


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_without_another_host(tmp_path: Path) -> None:
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install '.[docs]'")
    surroundings = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path)]
    for command in ([sys.executable, "-m", "website"], build):
        ended = subprocess.run(
            command, check=False, cwd=ROOT, env=surroundings, capture_output=True, text=True, timeout=200
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 35
    loaded = re.compile(r"<(?:script|img|iframe|link)[^>]*?\s(?:src|href)=[\"']?(?:https?:)?//[^\"'\s>]+")
    assert [found for page in pages for found in loaded.findall(page.read_text("utf-8"))] == []
    styles = [sheet.read_text("utf-8") for sheet in tmp_path.rglob("*.css")]
    assert [found for style in styles for found in re.findall(r"(?:@import|url\()\s*[\"']?https?:", style)] == []
    functions = (tmp_path / "reference/api/commands.html").read_text("utf-8")
    assert 'id="maskwright.runs.commands.adapt"' in functions
    assert "Adapt an encoder to texts of a domain" in functions
