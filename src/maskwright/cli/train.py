"""`maskwright train`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from maskwright.errors import RunError
from maskwright.terminal import echo, say

if TYPE_CHECKING:
    from rich.console import Console

    from maskwright.config import Config
    from maskwright.runs.pretrain import FinishedRun


Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RECIPE | CONFIG.yaml] [KEY=VALUE ...]", help="A recipe or a YAML file, and settings that override it."
    ),
]


ConfigFile = Annotated[
    str | None,
    typer.Option("--config", metavar="CONFIG.yaml", help="A YAML file or a recipe; the same as the first argument."),
]


def load_settings(words: list[str] | None, config: str | None = None) -> Config:
    """The configuration that the arguments describe; without arguments, the built-in quickstart."""
    from maskwright.config import open_config
    from maskwright.errors import InputError

    words = words or []
    is_named = bool(words) and "=" not in words[0]
    if config is not None and is_named:
        raise InputError(f"'{words[0]}' and --config {config} are both given; keep one of them")
    if is_named:
        config, words = words[0], words[1:]
    return open_config(config, words)


def train(
    settings: Settings = None,
    config_file: ConfigFile = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing run of this name.")] = False,
    shows_recipes: Annotated[bool, typer.Option("--list", help="Show the recipes and exit.")] = False,
) -> None:
    """Pre-train a model. Without a recipe or a configuration, run the built-in quickstart.

    The same command on an unfinished run resumes it.

    Examples:

        maskwright train

        maskwright train modern_small data.train=corpus.jsonl.zst

        maskwright train small_corpus data.train=corpus.txt run.name=mine

        maskwright train config.yaml training.max_steps=10000

        maskwright train --config config.yaml
    """
    from maskwright.terminal import CleanConsole

    if shows_recipes:
        _print_recipes()
        return
    config = load_settings(settings, config_file)

    # Only now, so that a mistake in the settings is answered without waiting for torch.
    from maskwright.runs.commands import train as start

    console = CleanConsole()
    print_run(start(config, overwrite=overwrite, console=console), console)


def print_run(run: FinishedRun, console: Console) -> None:
    """Its predictions, figures and next commands; an error where it went wrong."""
    from maskwright.runs.report import format_figures

    console.rule("held-out text")
    if run.predictions is not None:
        run.predictions.print(console)
    for label, value in format_figures(run.figures).items():
        say(console, f"{label:>16}  {value}")
    if run.trouble is not None:
        raise RunError(run.trouble)
    console.print(
        f"\n{run.folder.report_file}  curves, predictions and settings\nTry next:",
        *(f"\n  {command}" for command in run.next_commands),
        sep="",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _print_recipes() -> None:
    from maskwright.recipes import find_folder, list_recipes

    recipes = list_recipes()
    width = max((len(recipe.name) for recipe in recipes), default=0)
    for recipe in recipes:
        echo(f"{recipe.name:<{width}}  {recipe.purpose}")
    echo(f"\nStart one with maskwright train NAME data.train=your.txt, or copy its file from {find_folder()}")
