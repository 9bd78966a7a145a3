"""The command line: arguments to calls, errors to exit codes. Commands import what they need when they run."""

from __future__ import annotations

import os
import signal
import sys
import traceback
import warnings
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer

from maskwright.cli.adapt import adapt
from maskwright.cli.compare import compare
from maskwright.cli.distill import distill
from maskwright.cli.doctor import doctor
from maskwright.cli.eval import evaluate
from maskwright.cli.export import export
from maskwright.cli.finetune import complete_lora, finetune
from maskwright.cli.launch import launch
from maskwright.cli.models import models_app
from maskwright.cli.predict import complete_keep_columns, embed, fill, generate, predict
from maskwright.cli.prepare import prepare_app
from maskwright.cli.search import index, mine, search
from maskwright.cli.serve import board, serve
from maskwright.cli.sweep import sweep
from maskwright.cli.tokenizer import tokenizer_app
from maskwright.cli.train import train
from maskwright.cli.usage import Commands
from maskwright.errors import (
    FollowerError,
    InputError,
    InputWarning,
    RunError,
    RunInterruptedError,
    describe_shortage,
)
from maskwright.terminal import clean, echo, open_terminal
from maskwright.version import __version__

_HELP = """Pre-train, adapt, fine-tune, evaluate, export and run masked-language-model encoders.

Examples:

    maskwright train

    maskwright fill runs/quickstart "The for [MASK] is used to iterate over a sequence."
"""
_INTERRUPTED = 130
"""The exit code of Ctrl-C, by the shells' convention; typer turns the interrupt into it."""

app = Commands(
    name="maskwright",
    help=_HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.command()(train)
app.command()(adapt)
app.command()(distill)
app.command()(finetune)
app.command()(doctor)
app.command()(launch)
app.command()(sweep)
app.command()(fill)
app.command("eval")(evaluate)
app.command()(generate)
app.command()(predict)
app.command()(embed)
app.command()(index)
app.command()(search)
app.command()(mine)
app.command()(serve)
app.command()(board)
app.command()(compare)
app.command()(export)
app.add_typer(prepare_app, name="prepare")
app.add_typer(tokenizer_app)
app.add_typer(models_app)


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """`main` removes `--debug` from the arguments, so that it may stand anywhere; here it is for `--help`."""
    if version:
        echo(__version__)
        raise typer.Exit


def main() -> None:
    """Exit 0 when done, 1 when a run failed, 2 for bad usage or input."""
    debug = "--debug" in sys.argv
    if debug:
        sys.argv.remove("--debug")
    sys.argv[1:] = complete_lora(complete_keep_columns(sys.argv[1:]))
    open_terminal()
    warnings.showwarning = _show_warning
    if "LOCAL_WORLD_SIZE" in os.environ:  # torchrun
        signal.signal(signal.SIGTERM, _leave_launch)
    try:
        code = app(standalone_mode=False)
        if code == _INTERRUPTED:
            echo(f"interrupted; {_describe_kept(sys.argv[1:])}", err=True)
    except Exception as error:
        if not _is_expected(error):
            raise
        if debug:
            echo(traceback.format_exc(), err=True)
        message = " ".join(_describe(error).splitlines())
        if message and _speaks(error):
            echo(f"error: {message}", err=True)
        code = _exit_code(error)
    sys.exit(code)


def _describe_kept(words: list[str]) -> str:
    """What a command keeps after Ctrl-C; runs print their own message once they have started."""
    if words[:1] == ["prepare"] and words[1:2] != ["wiki"]:
        return "what is prepared so far is kept, and the same command goes on with it"
    if words[:1] == ["index"]:
        return "what is indexed so far is kept, and the same command goes on with it"
    if words[:1] == ["eval"] and "glue" in words:
        return "finished runs are kept, and the same command goes on with the others"
    if words[:1] in (["train"], ["finetune"], ["adapt"], ["distill"]):
        return "this command had saved nothing yet, and the same command goes on from what is there"
    return "nothing was written, and the same command begins again"


def _leave_launch(number: int, frame: FrameType | None) -> NoReturn:
    """Handles SIGTERM until a run installs its own handler: torchrun ends all processes when one ends."""
    gone = _find_gone_ranks()
    reason = f"rank {', '.join(map(str, gone))} ended before it met the others" if gone else "interrupted"
    sys.stderr.write(f"error: {reason}; the same command begins or resumes the run\n")
    sys.stderr.flush()
    os._exit(1 if gone else 128 + number)


def _find_gone_ranks() -> list[int]:
    """Ranks that torchrun started on this machine and that no longer run; empty if /proc does not tell."""
    first = int(os.environ["RANK"]) - int(os.environ["LOCAL_RANK"])
    running = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            if int(parent) == os.getppid() and state != "Z":
                environment = (process / "environ").read_bytes().split(b"\0")
                running |= {int(entry[5:]) for entry in environment if entry.startswith(b"RANK=")}
        except (OSError, ValueError):  # it ended meanwhile, or is somebody else's
            continue
    expected = range(first, first + int(os.environ["LOCAL_WORLD_SIZE"]))
    return [rank for rank in expected if rank not in running] if running else []


_show_in_full = warnings.showwarning


def _show_warning(message: Warning | str, category: type[Warning], *place: Any, **options: Any) -> None:
    """Print a warning about the user's input as one line, and any other warning as Python does."""
    if issubclass(category, InputWarning):
        if _is_main_process():
            echo(f"warning: {message}", err=True)
    else:
        _show_in_full(clean(str(message)), category, *place, **options)


def _exit_code(error: Exception) -> int:
    if isinstance(error, RunInterruptedError):
        return error.exit_code
    return 1 if isinstance(error, RunError | OSError) or describe_shortage(error) else 2


def _speaks(error: Exception) -> bool:
    """Whether this process prints the error: the main one does, and any process that failed by itself."""
    is_shared = not isinstance(error, RunError) or isinstance(error, RunInterruptedError | FollowerError)
    return _is_main_process() or not is_shared


def _is_main_process() -> bool:
    """Rank 0 under torchrun; a process on its own is the main one."""
    return os.environ.get("RANK", "0") == "0"


def _is_expected(error: Exception) -> bool:
    """Any other error is a bug of ours and keeps its traceback; an OSError means a failing disk, file or network."""
    is_ours = isinstance(error, InputError | RunError | OSError) or hasattr(error, "format_message")
    return is_ours or describe_shortage(error) is not None


def _describe(error: Exception) -> str:
    """The message of an error; typer's usage errors say more than their `str`, and nothing if help was shown."""
    if hasattr(error, "format_message"):
        return str(error.format_message())
    return describe_shortage(error) or str(error)
