"""`maskwright train`"""

from __future__ import annotations

from typing import Annotated

import typer

from maskwright.cli.settings import Settings, load_settings


def train(
    settings: Settings = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing run of this name.")] = False,
    shows_recipes: Annotated[bool, typer.Option("--list", help="Show the recipes and exit.")] = False,
) -> None:
    """Pre-train a model; without a recipe or a configuration, the built-in quickstart.

    The same command on an unfinished run resumes it.

    Examples:

        maskwright train

        maskwright train modern_small data.train=corpus.jsonl.zst

        maskwright train preset=low_resource data.train=corpus.txt run.name=mine

        maskwright train config.yaml training.max_steps=10000
    """
    import shlex

    from rich.console import Console

    if shows_recipes:
        _print_recipes()
        return
    config = load_settings(settings)

    # Only now, so that a mistake in the settings is answered without waiting for torch.
    from maskwright.runs.commands import train as start
    from maskwright.runs.report import format_figures

    console = Console()
    run = start(config, overwrite=overwrite, console=console)
    console.rule("held-out text")
    if run.predictions is not None:
        run.predictions.print(console)
    for label, value in format_figures(run.figures).items():
        console.print(f"{label:>16}  {value}", highlight=False)
    folder = shlex.quote(str(run.folder.path))
    console.print(
        f"\n{run.folder.report_file}  curves, predictions and settings\nTry next:\n"
        f"  {_suggest_look(config.training.mode, folder)}\n"
        f"  maskwright train data.train=your.txt run.name=yours",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _print_recipes() -> None:
    from maskwright.recipes import find_folder, list_recipes

    recipes = list_recipes()
    width = max((len(recipe.name) for recipe in recipes), default=0)
    for recipe in recipes:
        typer.echo(f"{recipe.name:<{width}}  {recipe.purpose}")
    typer.echo(f"\nStart one with maskwright train NAME data.train=your.txt, or copy its file from {find_folder()}")


def _suggest_look(mode: str, folder: str) -> str:
    if mode == "rtd":
        return f"maskwright train training.mode=rtd model.from={folder} run.name=longer"
    if mode == "clm":
        return f'maskwright generate {folder} "The for statement is"'
    return f'maskwright fill {folder} "The for [MASK] is used to iterate over a sequence."'
