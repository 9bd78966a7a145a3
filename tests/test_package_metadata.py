"""What a built package says of itself: addresses, links that work where README stands alone, versions of Python."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import maskwright

ROOT = Path(__file__).parents[1]
HOME = "https://example.org/people/maskwright"


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The build's own code, without the build system, of which it needs a base class."""
    interface = ModuleType("hatchling.metadata.plugin.interface")
    vars(interface)["MetadataHookInterface"] = object
    monkeypatch.setitem(sys.modules, "hatchling.metadata.plugin.interface", interface)
    for name in ("hatchling", "hatchling.metadata", "hatchling.metadata.plugin"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for name in ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY"):
        monkeypatch.delenv(name, raising=False)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(hook: Any, root: Path) -> dict[str, Any]:
    metadata: dict[str, Any] = {"version": maskwright.__version__}
    hook.CustomMetadataHook.update(SimpleNamespace(root=str(root)), metadata)
    return metadata


def test_links_of_readme_lead_to_the_files_of_the_release(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://example.org")
    monkeypatch.setenv("GITHUB_REPOSITORY", "people/maskwright")
    metadata = build(hook, ROOT)
    text = metadata["readme"]["text"]
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(targets) > 20
    assert [one for one in targets if "://" not in one] == []
    for target in (one for one in targets if one.startswith(HOME)):
        kind, version, file = target.removeprefix(f"{HOME}/").split("/", 2)
        assert version == f"v{maskwright.__version__}"
        assert (ROOT / file.partition("#")[0]).is_file()
        assert (kind == "raw") == file.endswith(".png")
    assert metadata["urls"]["Source"] == HOME
    assert len(metadata["urls"]) == 4


@pytest.mark.parametrize(
    ("origin", "home"),
    [
        ("https://example.org/people/maskwright.git", HOME),
        ("git@example.org:people/maskwright.git", HOME),
        ("ssh://git@example.org/people/maskwright", HOME),
        ("/somewhere/on/this/disk", None),
        ("https://user:secret@example.org/people/maskwright", None),
        (None, None),
    ],
)
def test_the_home_is_the_origin_of_the_clone(hook: Any, tmp_path: Path, origin: str | None, home: str | None) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    if origin is not None:
        subprocess.run(["git", "-C", tmp_path, "remote", "add", "origin", origin], check=True)
    (tmp_path / "README.md").write_text("[a](docs/a.md) ![b](b.png) [c](https://c.org) [d](#d)", encoding="utf-8")
    metadata = build(hook, tmp_path)
    assert metadata.get("urls", {}).get("Source") == home
    is_relative = "(docs/a.md)" in metadata["readme"]["text"]
    assert is_relative == (home is None)
    assert "[c](https://c.org) [d](#d)" in metadata["readme"]["text"]


def test_versions_of_python_are_stated_and_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = [one.rpartition(" ")[2] for one in project["classifiers"] if re.search(r":: 3\.\d+$", one)]
    assert versions == ["3.11", "3.12", "3.13", "3.14"]
    assert project["requires-python"] == ">=3.11"
    workflow = (ROOT / ".github" / "workflows" / "checks.yml").read_text(encoding="utf-8")
    assert all(f'"{version}"' in workflow for version in versions)
