"""Scripts beside the package, which no type checker reads, import names that are there."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = [path for folder in ("benchmarks", "journeys", "examples") for path in sorted((ROOT / folder).rglob("*.py"))]


def has_name(module: str, name: str) -> bool:
    try:
        if hasattr(importlib.import_module(module), name):
            return True
        importlib.import_module(f"{module}.{name}")
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] != "maskwright":
            pytest.skip(f"{module} needs {error.name}")
        return False
    return True


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: str(script.relative_to(ROOT)))
def test_what_a_script_takes_from_the_package_is_there(script: Path) -> None:
    tree = ast.parse(script.read_text(encoding="utf-8"))
    taken = [
        (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "maskwright"
        for alias in node.names
    ]
    missing = [f"{module}.{name}" for module, name in taken if not has_name(module, name)]
    assert missing == []


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) > 30
