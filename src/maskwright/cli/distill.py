"""`maskwright distill`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from maskwright.cli.train import print_run


def distill(
    teacher: Annotated[str, typer.Argument(help="The encoder to learn from: a model folder, a run or a hub id.")],
    layers: Annotated[int, typer.Option(min=1, help="Layers of the student, fewer than the teacher's.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILES...] [KEY=VALUE ...]", help="More files for --text, and settings of the run."),
    ] = None,
    text: Annotated[list[str] | None, typer.Option(help="Text to learn on; may be given several times.")] = None,
    width: Annotated[
        int | None, typer.Option(min=1, help="With --objective minilm: another width than the teacher's.")
    ] = None,
    objective: Annotated[
        Literal["distilbert", "minilm"],
        typer.Option(help="Learn predictions and hidden states, or the attention of the last layer."),
    ] = "distilbert",
    out: Annotated[Path | None, typer.Option(help="Folder of the run; unset: runs/TEACHER-N-layers.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing run of this name.")] = False,
) -> None:
    """Make a smaller encoder that learns from a larger one on raw text.

    Both see the same masked rows. The student begins as evenly spaced layers of the teacher. Size, speed and the loss
    on held-out text are measured for both. The same command on an unfinished run resumes it.

    Examples:

        maskwright distill bert-base-uncased --layers 6 --text wiki.txt --out runs/small

        maskwright distill runs/mine --layers 4 --width 192 --objective minilm --text 'corpus/*.jsonl'
    """
    from maskwright.runs.distill import distill as run
    from maskwright.terminal import CleanConsole

    words, console = words or [], CleanConsole()
    finished = run(
        teacher,
        [*(text or []), *(word for word in words if "=" not in word)],
        layers=layers,
        width=width,
        objective=objective,
        out=out,
        settings=[word for word in words if "=" in word],
        overwrite=overwrite,
        console=console,
    )
    print_run(finished, console)
