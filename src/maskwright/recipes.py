"""Recipes: configuration files to run by name, to override with your own settings (`preset=NAME`), or to copy.

Each begins with a header of comments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from maskwright.errors import InputError
from maskwright.suggestions import suggest
from maskwright.untrusted import read_yaml

PACKAGED_FOLDER = "recipe_files"
HEADER_FIELDS = ("For", "Command", "Run", "Reached")
"""What it is for; how it is started; on what it was run and how long; what it reached."""
_PACKAGE = Path(__file__).parent


@dataclass(frozen=True)
class Recipe:
    name: str
    path: Path
    header: dict[str, str]

    @property
    def purpose(self) -> str:
        """What the recipe is for; empty for a file without a header."""
        return self.header.get("For", "")


def find_folder() -> Path:
    """The folder of the recipes: in the installed package, or beside the sources in a checkout."""
    packaged = _PACKAGE / PACKAGED_FOLDER
    return packaged if packaged.is_dir() else _PACKAGE.parents[1] / "recipes"


def list_recipes() -> list[Recipe]:
    return [Recipe(name, path, _read_header(path)) for name, path in _find_files().items()]


def read_recipe(name: str, kind: str = "recipe") -> Mapping[str, Any]:
    """The values of a recipe; `kind` is what an error calls it."""
    files = _find_files()
    if name not in files:
        raise InputError(f"no {kind} '{name}'{suggest(name, files)}")
    return _read_values(files[name])


@cache
def _read_values(path: Path) -> Mapping[str, Any]:
    return read_yaml(path) or {}


def _find_files() -> dict[str, Path]:
    return {path.stem: path for path in sorted(find_folder().glob("*.yaml"))}


@cache
def _read_header(path: Path) -> dict[str, str]:
    """`# Field: text`, each going on in comments that are further indented, up to the first line of settings."""
    header: dict[str, str] = {}
    field = None
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        name, _, text = line.removeprefix("# ").partition(": ")
        if name in HEADER_FIELDS:
            field = name
            header[field] = text.strip()
        elif field is not None and line.startswith("#   "):
            header[field] += f" {line.removeprefix('#').strip()}"
        else:
            field = None
    return header
