"""`maskwright doctor`"""

from __future__ import annotations

from typing import Annotated

import typer

from maskwright.cli.settings import Settings, load_settings


def doctor(
    settings: Settings = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check a run before it is started: model, memory, disk, data, speed, length and settings.

    It takes what train takes, does a few real steps, and writes nothing. Exit 2 when there is a problem.

    Examples:

        maskwright doctor

        maskwright doctor config.yaml training.batch_tokens=65536
    """
    import json

    config = load_settings(settings)

    # Only now, so that a mistake in the settings is answered without waiting for torch.
    from rich.console import Console

    from maskwright.runs.checkup.view import print_checkup
    from maskwright.runs.commands import doctor as run

    checkup = run(config)
    if as_json:
        typer.echo(json.dumps(checkup.to_json(), indent=2))
    else:
        print_checkup(checkup, Console())
    raise typer.Exit(checkup.exit_code)
