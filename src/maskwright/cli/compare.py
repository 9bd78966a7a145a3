"""`maskwright compare`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from maskwright.terminal import echo


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN...", help="Folders of two to eight runs.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("compare.html"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing page.")] = False,
) -> None:
    """Show runs side by side on one page: figures, settings in which they differ, curves over each other.

    Runs need not be finished. The page needs no server and no other file.

    Examples:

        maskwright compare runs/mine runs/other

        maskwright compare runs/mine runs/other --out both.html --overwrite
    """
    from maskwright.runs.compare import compare as run

    echo(f"{run(runs, out, overwrite=overwrite)} is ready")
