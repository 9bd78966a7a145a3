"""The command line: words to calls, errors to exit codes. Commands import what they need when they run."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from maskwright.cli.fill import fill
from maskwright.cli.train import train

app = typer.Typer(
    name="maskwright",
    help="Pre-train, adapt, evaluate and run masked-language-model encoders.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.command()(train)
app.command()(fill)


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks instead of one-line errors.")] = False,
) -> None:
    if version:
        from maskwright import __version__

        typer.echo(__version__)
        raise typer.Exit
    context.obj = {"debug": debug}


def main() -> None:
    """Exit 0 when done, 1 when a run failed, 2 for bad usage or input."""
    from maskwright.errors import InputError, RunError

    debug = "--debug" in sys.argv
    if debug:
        sys.argv.remove("--debug")
    try:
        app()
    except (InputError, RunError) as error:
        if debug:
            raise
        typer.echo(f"error: {error}", err=True)
        sys.exit(2 if isinstance(error, InputError) else 1)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        sys.exit(130)
