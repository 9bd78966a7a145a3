"""The words that commands about a run take: a configuration file, then overrides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from maskwright.config import Config

Settings = Annotated[
    list[str] | None, typer.Argument(metavar="[CONFIG.yaml] [KEY=VALUE ...]", help="A configuration and overrides.")
]


def load_settings(words: list[str] | None) -> Config:
    """The configuration that the words name; without words, the built-in quickstart."""
    from maskwright.config import load_config

    words = words or []
    path = words[0] if words and "=" not in words[0] else None
    return load_config(path, words[1:] if path is not None else words)
