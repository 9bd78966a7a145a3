"""`maskwright board`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def board(
    runs: Annotated[Path, typer.Argument(help="The folder of runs; those in folders below it are shown too.")] = Path(
        "runs"
    ),
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0: all of this machine.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any free one.")] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="MASKWRIGHT_API_KEY",
            help="Key that requests must send; others can see it here, not in the variable.",
        ),
    ] = None,
) -> None:
    """Show all runs of a folder in a browser, as they train: curves, settings, held-out predictions.

    It reads the files of the runs and asks nothing of a process that trains.

    Examples:

        maskwright board

        maskwright board runs/ --port 8080
    """
    from maskwright.serving.watch import board as run

    run(runs, host=host, port=port, api_key=api_key)
