"""The run folder: what is in it, and whether a command may start, resume or replace a run there."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from maskwright.config import Config, flatten, load_config
from maskwright.errors import InputError
from maskwright.models.pretrained import CHECKPOINTS_FOLDER, MODEL_FOLDER
from maskwright.storage import read_json, write_text
from maskwright.text.tokenizer import Tokenizer
from maskwright.training.trackers import TRACKERS_FOLDER

_CORE_SECTIONS = {"run", "model", "tokenizer", "data", "masking", "optimizer", "schedule", "training"}
"""What the configuration of every run has, also of those begun before sections were added."""
_FREE_TO_CHANGE = {
    "training.activation_checkpointing",
    "training.dead_process_seconds",
    "training.device",
    "training.micro_batch_tokens",
    "training.parallel",
    "training.precision",  # the checkpoint knows the one it was computed in
}


@dataclass(frozen=True)
class RunFolder:
    """`config.yaml`, `metrics.jsonl`, `final.json`, `report.html`, `curves.png`, `checkpoints/` and `model/`."""

    path: Path

    @property
    def config_file(self) -> Path:
        return self.path / "config.yaml"

    @property
    def data_file(self) -> Path:
        return self.path / "data.json"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def final_file(self) -> Path:
        return self.path / "final.json"

    @property
    def forgetting_file(self) -> Path:
        return self.path / "forgetting.json"

    @property
    def curves_file(self) -> Path:
        return self.path / "curves.png"

    @property
    def report_file(self) -> Path:
        return self.path / "report.html"

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS_FOLDER

    @property
    def model(self) -> Path:
        return self.path / MODEL_FOLDER

    @property
    def tokenizer(self) -> Path:
        return self.path / "tokenizer"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def trackers(self) -> Path:
        return self.path / TRACKERS_FOLDER

    @property
    def is_run(self) -> bool:
        """Whether a run was begun here: a configuration alone does not tell, people keep their own in folders."""
        try:
            values = yaml.safe_load(self.config_file.read_bytes())
        except (OSError, ValueError, yaml.YAMLError):
            return False
        return isinstance(values, dict) and set(values) >= _CORE_SECTIONS

    @property
    def is_finished(self) -> bool:
        return self.final_file.is_file()

    def read_metrics(self) -> list[dict[str, float]]:
        """The lines of metrics.jsonl; one that a crash cut short is left out."""
        if not self.metrics_file.is_file():
            return []
        return list(_parse_lines(self.metrics_file.read_text(encoding="utf-8", errors="replace")))

    def keep_metrics(self, is_kept: Callable[[dict[str, float]], bool]) -> None:
        """Drop the other lines of metrics.jsonl."""
        kept = [line for line in self.read_metrics() if is_kept(line)]
        write_text(self.metrics_file, "".join(json.dumps(line) + "\n" for line in kept))

    def begin(self, config: Config, tokenizer: Tokenizer, data_fingerprint: str, overwrite: bool) -> None:
        """Write down what the run starts from; what a resumed run has already stays, and must be the same."""
        if not overwrite and self.data_file.is_file() and read_json(self.data_file)["fingerprint"] != data_fingerprint:
            raise InputError(
                f"{self.path} is an unfinished run on other texts or another tokenizer; choose another run.name, or add"
                " --overwrite"
            )
        try:
            if overwrite:
                self._clear()
            self.path.mkdir(parents=True, exist_ok=True)
            if not self.config_file.is_file():
                config.save(self.config_file)
            write_text(self.data_file, json.dumps({"fingerprint": data_fingerprint}) + "\n")
            if not (self.tokenizer / "tokenizer.json").is_file():
                tokenizer.save(self.tokenizer)
        except OSError as error:
            raise _unwritable(self.path, error.strerror) from error

    def _clear(self) -> None:
        """Remove what a run writes and nothing else; the configuration last, so that a half-cleared run stays one."""
        files = (
            self.final_file,
            self.data_file,
            self.metrics_file,
            self.forgetting_file,
            self.curves_file,
            self.report_file,
        )
        for folder in (self.model, self.checkpoints, self.tokenizer, self.tensorboard, self.trackers):
            if folder.is_dir():
                shutil.rmtree(folder)
        for file in (*files, self.config_file):
            file.unlink(missing_ok=True)

    def write_final(self, figures: dict[str, Any]) -> None:
        write_text(self.final_file, json.dumps(figures, indent=2) + "\n")


def find_run(config: Config, overwrite: bool = False) -> RunFolder:
    """The folder of a new or unfinished run, refused where work would be lost; nothing is written yet."""
    run = RunFolder(Path(config.run.out) / config.run.name)
    _check_writable(run.path)
    if not run.path.exists() or not any(run.path.iterdir()):
        return run
    if not run.is_run:
        raise InputError(f"{run.path} exists and is not a run; choose another run.name or run.out")
    if overwrite:
        return run
    refuse_finished(run)
    check_same_config(run, config)
    return run


def refuse_finished(run: RunFolder) -> None:
    if run.is_finished:
        raise InputError(
            f"{run.path} holds a finished run; choose another run.name, or add --overwrite to replace that run"
        )


def _check_writable(path: Path) -> None:
    existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not existing.is_dir():
        raise _unwritable(path, f"{existing} is a file")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise _unwritable(path, f"no permission in {existing}")


def _unwritable(path: Path, reason: str | None) -> InputError:
    return InputError(f"cannot write to {path}: {reason}; choose another run.out")


def check_same_config(run: RunFolder, config: Config) -> None:
    """A run goes on, or counts as done, only under the settings it was started with; some change no result."""
    started = flatten(load_config(run.config_file).model_dump(by_alias=True))
    asked = flatten(config.model_dump(by_alias=True))
    changed = [key for key in asked if key not in _FREE_TO_CHANGE and asked[key] != started[key]]
    if changed:
        key = changed[0]
        raise InputError(
            f"{run.path} is {'a finished' if run.is_finished else 'an unfinished'} run with {key}={started[key]}, this"
            f" command has {key}={asked[key]};"
            " repeat its settings to resume it, choose another run.name, or add --overwrite"
        )


def _parse_lines(text: str) -> Iterator[dict[str, float]]:
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue
