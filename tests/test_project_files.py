"""The files for those who join and cite: they name the version of the package, and point at what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import maskwright

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


def test_the_changelog_begins_with_the_version_of_the_package() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert re.fullmatch(rf"{re.escape(maskwright.__version__)} - (Unreleased|\d{{4}}-\d\d-\d\d)", headings[0])


def test_the_citation_has_what_the_format_asks_for_and_the_version_of_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert all(author.get("name") or author.get("family-names") for author in citation["authors"])
    assert citation["version"] == maskwright.__version__


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    assert [link for link in links if not (page.parent / link.partition("#")[0]).exists()] == []


def test_the_workflow_runs_the_checks_on_both_architectures() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "checks.yml").read_text(encoding="utf-8"))
    job = workflow["jobs"]["checks"]
    assert any(step.get("run") == ".ci/run" for step in job["steps"])
    runners = job["strategy"]["matrix"]["runner"]
    assert {runner.endswith("-arm") for runner in runners} == {True, False}


def test_the_workflow_covers_the_systems_that_the_package_names() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "checks.yml").read_text(encoding="utf-8"))
    matrix = workflow["jobs"]["systems"]["strategy"]["matrix"]
    assert {runner.partition("-")[0] for runner in matrix["runner"]} == {"ubuntu", "macos", "windows"}
    versions = {*matrix["python"], *(one["python"] for one in matrix["include"])}
    assert versions == {"3.11", "3.12", "3.13", "3.14"}


def test_the_workflow_runs_what_takes_long_at_times_of_its_own() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "checks.yml").read_text(encoding="utf-8"))
    assert "schedule" in workflow[True]  # YAML 1.1 reads `on` so
    job = workflow["jobs"]["slow"]
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {"test-all", "journeys"} <= set(job["strategy"]["matrix"]["target"]) <= targets
    assert [name for name, one in workflow["jobs"].items() if "schedule" not in one["if"]] == []


def test_the_architecture_names_files_that_are_there() -> None:
    code = re.findall(r"`([\w/]+(?:\.py|/))`", (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    assert len(set(code)) > 50
    assert [name for name in code if not (ROOT / "src" / "maskwright" / name).exists() and name != "recipes/"] == []
