"""The run folder: its files, and whether a command may start, resume or replace a run in it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maskwright.config import Config, flatten, load_config
from maskwright.errors import InputError
from maskwright.models.files.model_folder import CHECKPOINTS_FOLDER, MODEL_FOLDER
from maskwright.ownership import LOCK_FILE, Say, owning
from maskwright.storage import PARSING_ERRORS, read_json, write_text
from maskwright.suggestions import OVERWRITE
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.training.trackers import TRACKERS_FOLDER
from maskwright.untrusted import read_yaml

_CORE_SECTIONS = {"run", "model", "tokenizer", "data", "masking", "optimizer", "schedule", "training"}
"""Sections that the configuration of every run has, even of old runs."""
_FREE_TO_CHANGE = {
    "preset",  # the values it stands for are compared
    "run.name",  # the folder was found by these two
    "run.out",
    "run.store",
    "training.activation_checkpointing",
    "training.dead_process_seconds",
    "training.device",
    "training.final_evaluation",
    "training.keep_best",
    "training.keep_checkpoints",
    "training.keep_every_steps",
    "training.log_to",
    "training.max_bad_steps",
    "training.micro_batch_tokens",
    "training.parallel",
    "training.precision",  # the checkpoint knows the one it was computed in
    "training.tensorboard",
}
"""Settings that do not change the resulting weights, except for rounding."""
_MOST_COUNTED = 2**63
_ADAPTATION_FIGURES = (
    "max_forgetting",
    *(f"{prefix}{name}" for prefix in ("", "general_") for name in ("loss_before", "accuracy_before", "accuracy")),
    "general_loss",
)
"""Of runs that watched forgetting, beside "forgetting" and "loss"."""


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
    def predictions_file(self) -> Path:
        return self.path / "predictions.jsonl"

    @property
    def insight_file(self) -> Path:
        return self.path / "insight.json"

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
        """Whether a run was started here; a config.yaml alone is not enough, as it may be the user's own."""
        try:
            values = read_yaml(self.config_file)
        except (OSError, InputError):
            return False
        return isinstance(values, dict) and set(values) >= _CORE_SECTIONS

    def describe_damage(self) -> str:
        """What a folder that is no run lacks to be one, if its configuration is what cannot be read."""
        try:
            if self.config_file.is_file():
                read_yaml(self.config_file)
        except InputError as error:
            return f" that can be read: {error}"
        return ""

    @property
    def is_finished(self) -> bool:
        return self.final_file.is_file()

    def read_metrics(self) -> list[dict[str, float]]:
        """The lines of metrics.jsonl without damaged ones, such as a line cut by a crash."""
        return [line for line in self._parse_metrics() if line is not None]

    def find_lost_metrics(self, step: int) -> list[str]:
        """A sentence for each part of metrics.jsonl that is missing for a run resumed from `step`."""
        file, lines = self.metrics_file, self._parse_metrics()
        if step == 0:
            return [f"no checkpoint was saved before; the run begins again, and {file} with it"] if lines else []
        if not file.is_file():
            return [f"{file} is missing; the metrics up to step {step} are lost"]
        problems = []
        # a crash may have cut the last line short, which loses nothing
        is_cut = not file.read_bytes().endswith(b"\n")
        num_damaged = lines[: -1 if is_cut else None].count(None)
        if num_damaged:
            problems.append(f"{file}: {num_damaged} of {len(lines)} lines are damaged and are left out")
        last = max((line["step"] for line in lines if line is not None and line["step"] <= step), default=0)
        if last + load_config(self.config_file).training.log_every_steps <= step:
            problems.append(f"{file} ends at step {int(last)}; the metrics from there to step {step} are lost")
        return problems

    def _parse_metrics(self) -> list[dict[str, float] | None]:
        """Every line, None for a damaged one."""
        if not self.metrics_file.is_file():
            return []
        text = self.metrics_file.read_text(encoding="utf-8", errors="replace")
        return [parse_metrics_line(line) for line in text.splitlines()]

    def keep_metrics(self, is_kept: Callable[[dict[str, float]], bool]) -> None:
        """Drop the other lines of metrics.jsonl; where they are its last ones, that needs no room on the disk."""
        kept = "".join(json.dumps(line) + "\n" for line in self.read_metrics() if is_kept(line))
        if self.metrics_file.is_file() and self.metrics_file.read_bytes().startswith(kept.encode()):
            os.truncate(self.metrics_file, len(kept.encode()))
        else:
            write_text(self.metrics_file, kept)

    def read_fingerprint(self) -> str:
        """The fingerprint of the texts and the tokenizer."""
        found = read_json(self.data_file).get("fingerprint")
        if not isinstance(found, str):
            raise InputError(
                f"{self.data_file} does not say which texts the run was begun on; restore it, or delete it to go on"
                " with those of this command"
            )
        return found

    def begin(self, config: Config, tokenizer: Tokenizer, data_fingerprint: str, overwrite: bool) -> None:
        """Write the files a run starts with; those of a resumed run stay, and must be the same."""
        if not overwrite and self.data_file.is_file() and self.read_fingerprint() != data_fingerprint:
            raise InputError(
                f"{self.path} is an unfinished run on other texts or another tokenizer; choose another run.name, or add"
                f" {OVERWRITE}"
            )
        try:
            if overwrite:
                self._clear()
            self.path.mkdir(parents=True, exist_ok=True)
            if not self.config_file.is_file():
                config.save(self.config_file)
            if not self.data_file.is_file():
                write_text(self.data_file, json.dumps({"fingerprint": data_fingerprint}) + "\n")
            if not (self.tokenizer / "tokenizer.json").is_file():
                tokenizer.save(self.tokenizer)
        except OSError as error:
            raise _unwritable(self.path, error.strerror) from error

    @property
    def files(self) -> tuple[Path, ...]:
        """All that a run writes beside its folders; the configuration last, without which a folder is no run."""
        return (
            self.final_file,
            self.data_file,
            self.metrics_file,
            self.forgetting_file,
            self.predictions_file,
            self.insight_file,
            self.curves_file,
            self.report_file,
            self.config_file,
        )

    @property
    def folders(self) -> tuple[Path, ...]:
        return (self.model, self.checkpoints, self.tokenizer, self.tensorboard, self.trackers)

    def _clear(self) -> None:
        """Remove what a run writes and nothing else."""
        for folder in self.folders:
            if folder.is_dir():
                shutil.rmtree(folder)
        for file in self.files:
            file.unlink(missing_ok=True)

    def read_final(self, *needed: str) -> dict[str, Any]:
        """The figures of final.json, these among them; a file that lacks one, or holds something else, is damaged."""
        figures = read_json(self.final_file)
        needed = ("steps", *needed, *(_ADAPTATION_FIGURES if {"forgetting", "loss"} <= figures.keys() else ()))
        wrong = [name for name in needed if not _is_figure(figures.get(name, ""))]
        wrong += [name for name, value in figures.items() if not (_is_figure(value) or isinstance(value, str | dict))]
        if wrong:
            raise InputError(
                f"{self.final_file} has no figure '{wrong[0]}', which such a run ends with; it is damaged: restore it,"
                f" or repeat the run's command with {OVERWRITE}"
            )
        return figures

    def write_final(self, figures: dict[str, Any]) -> None:
        write_text(self.final_file, json.dumps(figures, indent=2) + "\n")


def own_run(path: Path, instead: str, say: Say, is_main: bool) -> AbstractContextManager[None]:
    """Inside the block, no other command starts, resumes or replaces a run in this folder; the main process holds the
    lock.
    """
    if not is_main:
        return nullcontext()
    _check_writable(path)
    return owning(path, lock=path / LOCK_FILE, instead=instead, say=say)


def find_run(config: Config, overwrite: bool = False) -> RunFolder:
    """The folder of a new or unfinished run; an InputError if work would be lost. Nothing is written yet."""
    run = RunFolder(Path(config.run.out) / config.run.name)
    _check_writable(run.path)
    if not run.path.exists() or all(path.name == LOCK_FILE for path in run.path.iterdir()):
        return run
    if not run.is_run:
        raise InputError(
            f"{run.path} exists and is not a run{run.describe_damage()}; choose another run.name or run.out"
        )
    if overwrite:
        return run
    refuse_finished(run)
    check_same_config(run, config)
    return run


def refuse_finished(run: RunFolder) -> None:
    if run.is_finished:
        raise InputError(
            f"{run.path} holds a finished run; choose another run.name, or add {OVERWRITE} to replace that run"
        )


def _check_writable(path: Path) -> None:
    existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not existing.is_dir():
        raise _unwritable(path, f"{existing} is a file")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise _unwritable(path, f"no permission in {existing}")


def _unwritable(path: Path, reason: str | None) -> InputError:
    return InputError(f"cannot write to {path}: {reason}; choose another run.out")


def check_same_config(run: RunFolder, config: Config, name: str | None = None) -> None:
    """A run is resumed, or counts as finished, only with the settings it was started with, except those that change no
    result. Its `name` is where it is, if not in the folder that is read.
    """
    for key, (started, asked) in find_changes(run, config).items():
        raise InputError(
            f"{name or run.path} is {'a finished' if run.is_finished else 'an unfinished'} run with {key}={started},"
            f" this command has {key}={asked};"
            f" repeat its settings to resume it, choose another run.name, or add {OVERWRITE}"
        )


def find_changes(run: RunFolder, config: Config) -> dict[str, tuple[Any, Any]]:
    """Settings that would change the run's result, with their old and new values."""
    started = flatten(load_config(run.config_file).model_dump(by_alias=True))
    asked = flatten(config.model_dump(by_alias=True))
    free = _FREE_TO_CHANGE | _list_free(config)
    return {key: (started[key], asked[key]) for key in asked if key not in free and asked[key] != started[key]}


def _list_free(config: Config) -> set[str]:
    """What decides about the weights only together with another setting, such as how often something is looked at."""
    free = set()
    if config.training.precision != "fp8":  # only compiled layers compute in it
        free.add("training.compile")
    if config.training.rollback_deviations is None:
        free |= {"training.log_every_steps", "training.checkpoint_every_steps"}
    if config.forgetting.general is None:
        free.add("training.evaluate_every_steps")
    if not config.training.keep_best:
        free.add("training.evaluate_max_batches")
    return free


def parse_metrics_line(line: str) -> dict[str, float] | None:
    """What a line of metrics.jsonl says; None for a damaged one."""
    try:
        values = json.loads(line)
    except PARSING_ERRORS:
        return None
    is_whole = isinstance(values, dict) and type(values.get("step")) is int and values["step"] >= 0
    return values if is_whole and all(map(_is_figure, values.values())) else None


def _is_figure(value: Any) -> bool:
    """None stands for one that could not be computed; a number fits what figures are drawn and summed in."""
    return value is None or isinstance(value, float) or (isinstance(value, int) and abs(value) < _MOST_COUNTED)
