"""`maskwright train`"""

from __future__ import annotations

from typing import Annotated

import typer

from maskwright.cli.settings import Settings, load_settings


def train(
    settings: Settings = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing run of this name.")] = False,
) -> None:
    """Pre-train a model; without a configuration, the built-in quickstart.

    The same command on an unfinished run resumes it.

    Examples:

        maskwright train

        maskwright train preset=low_resource data.train=corpus.txt run.name=mine

        maskwright train config.yaml training.max_steps=10000
    """
    import shlex

    from rich.console import Console

    config = load_settings(settings)

    # Only now, so that a mistake in the settings is answered without waiting for torch.
    from maskwright.runs.pretrain import pretrain
    from maskwright.runs.report import format_figures

    console = Console()
    run = pretrain(config, overwrite, console)
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


def _suggest_look(mode: str, folder: str) -> str:
    if mode == "rtd":
        return f"maskwright train training.mode=rtd model.from={folder} run.name=longer"
    if mode == "clm":
        return f'maskwright generate {folder} "The for statement is"'
    return f'maskwright fill {folder} "The for [MASK] is used to iterate over a sequence."'
