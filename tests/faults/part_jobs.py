"""What two processes do for the tests of checkpoints in parts: a sharded model that is trained, saved and resumed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch
from rank_jobs import SEED, build_loader, build_model
from safetensors.torch import save_file

from maskwright.sections.training import OptimizerConfig, ScheduleConfig, TrainingConfig
from maskwright.training import checkpoint_parts
from maskwright.training.checkpoints import write_checkpoint
from maskwright.training.distributed.world import leave_world
from maskwright.training.loop import Callback
from maskwright.training.trainer import Trainer

SAVED_AT, STOPPED_AT = 3, 6


class _SaveBothWays(Callback):
    """In parts, and gathered as a model that is not sharded is saved."""

    on_every_rank = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_step_end(self, step: int) -> None:
        trainer = self.trainer
        if step == SAVED_AT:
            trainer.save_checkpoint(self.folder / "parts", background=True)
            trainer.finish_writing()
            trainer.save_checkpoint(self.folder / f"machine-{trainer.world.rank}")
            contents = trainer.engine.collect_contents(trainer.state, trainer.history, None)
            if contents is not None:
                write_checkpoint(self.folder / "gathered", contents)
            trainer.finish_writing()


class _SaveEachStep(Callback):
    on_every_rank = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.warnings: list[str] = []

    def on_step_end(self, step: int) -> None:
        if step <= SAVED_AT:
            self.trainer.save_checkpoint(self.folder, background=True)
            self.trainer.finish_writing()

    def on_warning(self, message: str) -> None:
        self.warnings.append(message)


def build_trainer(**training: Any) -> Trainer:
    settings = {"device": "cpu", "precision": "fp32", "dead_process_seconds": 20.0, "max_steps": STOPPED_AT}
    settings |= {"epochs": 9, "average_decay": 0.8, "parallel": "fsdp"} | training
    return Trainer(
        build_model(),
        OptimizerConfig(type="muon", learning_rate=1e-2),
        ScheduleConfig(warmup_steps=2),
        TrainingConfig(**settings),
        seed=SEED,
    )


def fit(trainer: Trainer, callbacks: list[Callback], weights: Path) -> None:
    trainer.fit(build_loader(30, 4), callbacks=callbacks, verbose=False)
    if trainer.world.is_main:
        save_file({name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}, weights)


def save_and_resume(folder: str) -> None:
    torch.set_num_threads(1)
    place = Path(folder)
    fit(build_trainer(), [_SaveBothWays(place)], place / "unbroken.safetensors")
    resumed = build_trainer()
    resumed.load_checkpoint(place / "parts" / f"step-{SAVED_AT}")
    fit(resumed, [], place / "resumed.safetensors")
    resumed.world.sum_facts([0.0])
    leave_world()


def resume(folder: str, checkpoint: str, weights: str) -> None:
    torch.set_num_threads(1)
    trainer = build_trainer()
    trainer.load_checkpoint(Path(checkpoint))
    fit(trainer, [], Path(folder) / weights)
    trainer.world.sum_facts([0.0])
    leave_world()


def fail_while_writing(folder: str, is_killed: bool, rank: int = 1) -> None:
    """A process is killed, or its disk is full, when it has written a part of the last checkpoint."""
    torch.set_num_threads(1)
    place, write_parts = Path(folder), checkpoint_parts.write_parts

    def fail(path: Path, parts: Any) -> None:
        write_parts(path, parts)
        if os.environ["RANK"] == str(rank) and path.parent.name == f".step-{SAVED_AT}.tmp":
            if is_killed:
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(28, "No space left on device", str(path))

    checkpoint_parts.write_parts = fail
    callback, trainer = _SaveEachStep(place), build_trainer()
    with trainer.world.naming_the_departed():
        fit(trainer, [callback], place / "end.safetensors")
    trainer.world.sum_facts([0.0])
    (place / f"warnings-{trainer.world.rank}.txt").write_text("\n".join(callback.warnings))
    leave_world()
