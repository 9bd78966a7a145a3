"""`maskwright sweep`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from maskwright.cli.train import ConfigFile, Settings
from maskwright.terminal import echo


def sweep(
    settings: Settings = None,
    config_file: ConfigFile = None,
    out: Annotated[Path, typer.Option(help="The folder of the sweep.")] = Path("sweeps/sweep"),
    trials: Annotated[
        int | None, typer.Option(help="How many trials; unset: all combinations, or 27 if there is a range.", min=2)
    ] = None,
    keep_one_of: Annotated[
        int, typer.Option(help="Of so many trials one goes on, for as many times as long; 1: all are trained whole.")
    ] = 3,
    seed: Annotated[int, typer.Option(help="Seed of the choice from ranges.", min=0)] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another sweep in this folder.")] = False,
) -> None:
    """Search for the settings with the lowest held-out loss, by successive halving.

    Settings are those of train; some have several values (KEY=A,B,C) or a range (KEY=1e-4..3e-3). The same command goes
    on where it stopped.

    Examples:

        maskwright sweep small_corpus data.train=corpus.txt masking.ratio=0.15,0.3,0.4

        maskwright sweep config.yaml optimizer.learning_rate=1e-4..1e-2 schedule.warmup_share=0.01..0.2 --trials 18
    """
    from rich.table import Table

    from maskwright.errors import InputError
    from maskwright.runs.sweep.sweep import BEST_FILE, PAGE_FILE
    from maskwright.runs.sweep.sweep import sweep as run
    from maskwright.terminal import CleanConsole

    words = settings or []
    is_named = bool(words) and "=" not in words[0]
    if config_file is not None and is_named:
        raise InputError(f"'{words[0]}' and --config {config_file} are both given; keep one of them")
    config = words[0] if is_named else config_file
    console = CleanConsole()
    done = run(
        config,
        words[is_named:],
        out=out,
        trials=trials,
        keep_one_of=keep_one_of,
        seed=seed,
        overwrite=overwrite,
        console=console,
    )
    rows = [row.list_cells() for row in done.list_rows()]
    table = Table(*rows[0], box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row.values())
    console.print(table)
    echo(
        f"{out / PAGE_FILE}  table and curves\n{done.run.model}  the best model\n"
        f"Train with its settings: maskwright train {out / BEST_FILE} run.name=best"
    )
