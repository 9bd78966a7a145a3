"""What a run goes on from: its own newest checkpoint, or one of another run."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from maskwright.config import Config
from maskwright.errors import InputError
from maskwright.models.files.model_folder import CHECKPOINTS_FOLDER
from maskwright.runs.folder import RunFolder
from maskwright.runs.run_store import fetch_checkpoint
from maskwright.stores.addresses import is_store_url, parse_url
from maskwright.suggestions import OVERWRITE
from maskwright.terminal import say, warn
from maskwright.training.checkpoints import find_resumable, is_checkpoint
from maskwright.training.distributed.world import World
from maskwright.training.trainer import Trainer


def resume(config: Config, trainer: Trainer, run: RunFolder, console: Console) -> None:
    if not resume_newest(trainer, run, console) and config.training.keep_optimizer:
        trainer.continue_from(find_checkpoint(config.model.from_), optimizer="kept")


def resume_newest(trainer: Trainer, run: RunFolder, console: Console) -> bool:
    """Resume from the newest checkpoint; False if there is none."""
    checkpoint, problems = find_resumable(run.checkpoints)
    _check_same_everywhere(checkpoint, trainer.world, run)
    if checkpoint is None and problems:
        raise InputError(
            f"{run.path} has no whole checkpoint to go on from: {'; '.join(problems)}; restore one of them, or add"
            f" {OVERWRITE} to begin anew (nothing in the folder was changed)"
        )
    for problem in problems:
        warn(console, f"{problem}; falling back to an earlier one")
    if checkpoint is not None:
        trainer.load_checkpoint(checkpoint)
        say(console, f"resuming {run.path} from step {trainer.state.step}")
    return checkpoint is not None


def _check_same_everywhere(checkpoint: Path | None, world: World, run: RunFolder) -> None:
    step = 0.0 if checkpoint is None else float(checkpoint.name.removeprefix("step-"))
    if world.sum_facts([step])[0] != step * world.size:
        raise InputError(
            f"the processes see different checkpoints in {run.checkpoints}; the run must be in a folder that all"
            " machines share"
        )


def find_checkpoint(name: str | None) -> Path:
    """The checkpoint itself, or the newest of a run; only these hold optimizer state."""
    problems: list[str] = []
    place = None
    if name is not None:
        place = fetch_checkpoint(parse_url(name)) if is_store_url(name) else Path(name)
    for folder in () if place is None else (place, place / CHECKPOINTS_FOLDER):
        checkpoint, found = (folder, []) if is_checkpoint(folder) else find_resumable(folder)
        if checkpoint is not None:
            return checkpoint
        problems += found
    if problems:
        raise InputError(f"{name} has no whole checkpoint to go on from: {'; '.join(problems)}; restore one of them")
    raise InputError(
        f"training.keep_optimizer needs model.from to be a run or a checkpoint, found {name}; a model alone has no"
        " optimizer state"
    )
