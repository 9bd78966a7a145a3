"""`maskwright doctor`"""

from __future__ import annotations

from typing import Annotated

import typer

from maskwright.cli.train import ConfigFile, Settings, load_settings
from maskwright.terminal import echo


def doctor(
    settings: Settings = None,
    config_file: ConfigFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    nodes: Annotated[
        bool, typer.Option("--nodes", help="Compare the machines of a job instead; start it with torchrun on each.")
    ] = False,
) -> None:
    """Check a run before you start it: model, memory, disk, data, speed, duration and settings.

    It takes the arguments of train, runs a few real steps, and writes nothing to the run folder. The exit code is 2 if
    there is a problem.

    Examples:

        maskwright doctor

        maskwright doctor config.yaml training.batch_tokens=65536

        torchrun --nproc-per-node 2 -m maskwright doctor --nodes config.yaml
    """
    import json

    config = load_settings(settings, config_file)

    # Only now, so that a mistake in the settings is answered without waiting for torch.
    from maskwright.runs.commands import doctor as run
    from maskwright.runs.doctor.findings import print_checkup
    from maskwright.terminal import CleanConsole
    from maskwright.training.distributed.world import is_main_process

    checkup = run(config, nodes=nodes)
    if not is_main_process():
        raise typer.Exit(checkup.exit_code)
    if as_json:
        echo(json.dumps(checkup.to_json(), indent=2))
    else:
        print_checkup(checkup, CleanConsole())
    raise typer.Exit(checkup.exit_code)
