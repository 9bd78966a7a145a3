"""The words that commands about a run take: a configuration file or a recipe, then overrides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from maskwright.config import Config

Settings = Annotated[
    list[str] | None,
    typer.Argument(metavar="[RECIPE | CONFIG.yaml] [KEY=VALUE ...]", help="A recipe or a file, and overrides."),
]


def load_settings(words: list[str] | None) -> Config:
    """The configuration that the words name; without words, the built-in quickstart."""
    from maskwright.config import open_config

    words = words or []
    if not words or "=" in words[0]:
        return open_config(None, words)
    return open_config(words[0], words[1:])
