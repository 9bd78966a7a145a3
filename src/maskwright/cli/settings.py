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


ConfigFile = Annotated[
    str | None,
    typer.Option("--config", metavar="CONFIG.yaml", help="The same as a file or a recipe as the first word."),
]


def load_settings(words: list[str] | None, config: str | None = None) -> Config:
    """The configuration that the words name; without words, the built-in quickstart."""
    from maskwright.config import open_config
    from maskwright.errors import InputError

    words = words or []
    is_named = bool(words) and "=" not in words[0]
    if config is not None and is_named:
        raise InputError(f"'{words[0]}' and --config {config} are both given; keep one of them")
    if is_named:
        config, words = words[0], words[1:]
    return open_config(config, words)
