"""`maskwright sweep` and `maskwright.sweep`: which settings give the lowest held-out loss.

    OUT/sweep.json    what is tried, and the losses so far
    OUT/trial-000/    a run each, paused, finished, or given up without its checkpoints
    OUT/best.yaml     the settings of the best trial
    OUT/sweep.html    a table, and curves

The same command goes on where it stopped.
"""

from __future__ import annotations

import gc
import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from maskwright.config import Config, flatten, open_config
from maskwright.errors import InputError, RunError, RunInterruptedError, check_count
from maskwright.ownership import owning
from maskwright.runs.folder import RunFolder
from maskwright.runs.pause import RunPaused
from maskwright.runs.pretrain import pretrain
from maskwright.runs.sweep.halving import Round, count_whole_runs, keep_best, plan_rounds
from maskwright.runs.sweep.page import Row, build_sweep_page, list_rows
from maskwright.runs.sweep.space import (
    DEFAULT_TRIALS,
    Settings,
    Space,
    check_optuna,
    choose_settings,
    count_combinations,
    split_settings,
)
from maskwright.storage import check_format_version, dump_yaml, read_json, read_record, write_text
from maskwright.suggestions import OUT, OVERWRITE, checks_arguments
from maskwright.terminal import CleanConsole, say
from maskwright.training.held_out import choose_token_loss

SWEEP_FILE, BEST_FILE, PAGE_FILE = "sweep.json", "best.yaml", "sweep.html"
_FORMAT_VERSION = 1


@dataclass(frozen=True)
class Measured:
    """A trial where a round compares it."""

    loss: float
    step: int
    tokens: int
    seconds: float


@dataclass
class Trial:
    settings: dict[str, str]
    rounds: list[Measured] = field(default_factory=list)
    trouble: str | None = None
    """Why it failed."""

    @property
    def loss(self) -> float | None:
        """The last one."""
        return None if self.trouble is not None or not self.rounds else self.rounds[-1].loss


@dataclass
class Record:
    """The content of sweep.json."""

    plan: dict[str, Any]
    trials: list[Trial] = field(default_factory=list)
    format_version: int = _FORMAT_VERSION


@dataclass(frozen=True)
class Sweep:
    """A finished sweep."""

    folder: Path
    trials: list[Trial]
    """In the order in which they were chosen."""
    best: int
    """The number of the trial with the lowest loss of a whole run."""

    @property
    def run(self) -> RunFolder:
        """The best trial's."""
        return RunFolder(self.folder / _name(self.best))

    def list_rows(self) -> list[Row]:
        """The trials from the best to the worst, as the table shows them."""
        return list_rows({_name(number): trial for number, trial in enumerate(self.trials)})


@checks_arguments
def sweep(
    config: Config | Mapping[str, Any] | str | Path | None = None,
    settings: Sequence[str] | Mapping[str, Any] = (),
    *,
    out: str | Path = "sweeps/sweep",
    trials: int | None = None,
    keep_one_of: int = 3,
    seed: int = 0,
    overwrite: bool = False,
    console: Console | None = None,
) -> Sweep:
    """Search for the settings with the lowest held-out loss, by successive halving; the same call goes on.

    `config` is that of `train`. In `settings` some have several values, as `optimizer.learning_rate=1e-4,3e-4` or
    `{"optimizer.learning_rate": [1e-4, 3e-4]}`, or a range, as `1e-4..3e-3`. All combinations are tried, if there are
    no more than `trials`; otherwise Optuna chooses so many (27, if unset). Of each round one trial of `keep_one_of`
    goes on, for as many times as long, up to the whole budget of the configuration; 1 trains all of them to the end.
    """
    if "LOCAL_WORLD_SIZE" in os.environ:
        raise InputError("a sweep trains one run after another in one process; start it without torchrun")
    check_count("keep_one_of", keep_one_of)
    if trials is not None:
        check_count("trials", trials, 2)
    words, space = split_settings(settings)
    named = next((word for word in words if word.partition("=")[0] in ("run.name", "run.out")), None)
    if named is not None:
        raise InputError(f"{named} is given, but a sweep has a folder with a run for each trial; name it with {OUT}")
    size = count_combinations(space)
    num_trials = trials or (DEFAULT_TRIALS if size is None else size)
    if size is None or size > num_trials:
        check_optuna()
    else:
        num_trials = size
    folder = Path(out)
    base = _check_all(config, words, space, folder)
    plan = {
        "config": {key: value for key, value in flatten(base).items() if key not in ("run.name", "run.out")},
        "space": {key: str(one) for key, one in space.items()},
        "trials": num_trials,
        "keep_one_of": keep_one_of,
        "seed": seed,
    }
    shown = console or CleanConsole()
    with owning(folder):
        record = _open(folder, plan, overwrite)
        work = _Work(folder, config, words, space, record, plan_rounds(num_trials, keep_one_of), seed, shown)
        return work.run(num_trials)


def _check_all(config: Any, words: Sequence[str], space: Space, folder: Path) -> dict[str, Any]:
    """Refuse a value of any setting before the first run; the values of the configuration without the sweep."""
    for key, one in space.items():
        for value in one.examples:
            _build(config, [*words, f"{key}={value}"], folder, 0)
    base = _build(config, words, folder, 0)
    if not base.training.final_evaluation:
        raise InputError("training.final_evaluation is false, and a sweep compares runs by it; leave it out")
    return base.model_dump(by_alias=True, mode="json")


def _build(config: Any, words: Sequence[str], folder: Path, number: int) -> Config:
    return open_config(config, [*words, f"run.name={_name(number)}", f"run.out={folder}"])


def _name(number: int) -> str:
    return f"trial-{number:03d}"


def _open(folder: Path, plan: dict[str, Any], overwrite: bool) -> Record:
    """The record of an unfinished sweep of the same plan, or a new one."""
    path = folder / SWEEP_FILE
    if not path.is_file():
        if folder.is_dir() and any(not file.name.startswith(".") for file in folder.iterdir()):
            raise InputError(f"{folder} exists and is no sweep; choose another {OUT}")
        return Record(plan)
    if overwrite:
        for trial in folder.glob("trial-*"):
            shutil.rmtree(trial)
        for name in (SWEEP_FILE, BEST_FILE, PAGE_FILE):
            (folder / name).unlink(missing_ok=True)
        return Record(plan)
    values = read_json(path)
    check_format_version(values.get("format_version"), _FORMAT_VERSION, path)
    record = read_record(Record, values, path)
    changed = [key for key in plan if record.plan.get(key) != json.loads(json.dumps(plan[key]))]
    if changed:
        raise InputError(
            f"{folder} holds a sweep with another {' and '.join(changed)}; choose another {OUT}, or add {OVERWRITE}"
        )
    if (folder / PAGE_FILE).is_file():
        raise InputError(f"{folder} holds a finished sweep; choose another {OUT}, or add {OVERWRITE} to replace it")
    return record


@dataclass(frozen=True)
class _Work:
    folder: Path
    config: Any
    words: list[str]
    space: Space
    record: Record
    rounds: list[Round]
    seed: int
    console: Console

    def run(self, num_trials: int) -> Sweep:
        report = partial(say, self.console)
        swept = "; ".join(f"{key} {one}" for key, one in self.space.items())
        report(f"{self.folder}  {num_trials} trials of {swept}")
        steps = ", ".join(f"{one.num_trials} to {one.share:.3g} of their budget" for one in self.rounds)
        report(f"{steps}: as long as {count_whole_runs(self.rounds):.3g} whole runs")
        alive = list(range(num_trials))
        for place, one in enumerate(self.rounds):
            for number in alive:
                self._ensure(number, place, num_trials)
            losses = {number: self._find_loss(number, place) for number in alive}
            following = self.rounds[place + 1].num_trials if place + 1 < len(self.rounds) else len(alive)
            kept = keep_best(losses, following)
            if not kept:
                troubles = "; ".join(sorted({str(self.record.trials[number].trouble) for number in alive}))
                raise RunError(f"all trials failed: {troubles:.600}")
            if one.share < 1.0:
                report(f"{len(kept)} of {len(alive)} go on")
                self._give_up([number for number in alive if number not in kept])
            alive = kept
        return self._finish(min(alive, key=lambda number: losses[number] or math.inf))

    def _find_loss(self, number: int, place: int) -> float | None:
        trial = self.record.trials[number]
        return None if trial.trouble is not None else trial.rounds[place].loss

    def _ensure(self, number: int, place: int, num_trials: int) -> None:
        """Choose the trial's settings and train it as far as this round asks, unless that is done."""
        trials = self.record.trials
        if number == len(trials):
            past = [(trial.settings, trial.rounds[0].loss if trial.rounds else None) for trial in trials]
            trials.append(Trial(choose_settings(self.space, number, num_trials, self.seed, past)))
            self._save()
        trial = trials[number]
        if trial.trouble is not None or len(trial.rounds) > place:
            return
        settings = ", ".join(f"{key}={value}" for key, value in trial.settings.items())
        try:
            measured = self._train(number, trial.settings, self.rounds[place].share)
        except RunInterruptedError:
            raise
        except (InputError, RunError) as error:
            if isinstance(error, InputError) and not any(trial.rounds for trial in trials):
                raise  # no settings of this trial alone, such as a text that is not there
            trial.trouble = str(error)
            say(self.console, f"{_name(number)}  {settings}: failed, {error}")
        else:
            if math.isfinite(measured.loss):
                trial.rounds.append(measured)
            else:
                trial.trouble = f"the held-out loss is {measured.loss}"
            say(self.console, f"{_name(number)}  {settings}: loss {measured.loss:.4f} at step {measured.step:,}")
        self._save()

    def _train(self, number: int, settings: Settings, share: float) -> Measured:
        words = [*self.words, *(f"{key}={value}" for key, value in settings.items())]
        config = _build(self.config, words, self.folder, number)
        run = RunFolder(self.folder / _name(number))
        try:
            if not run.is_finished:  # else it ended before it was recorded, or early
                pretrain(config, console=CleanConsole(quiet=True), pause_at=share if share < 1.0 else None)
        except RunPaused as paused:
            return Measured(choose_token_loss(paused.metrics), paused.step, paused.tokens, paused.seconds)
        finally:
            gc.collect()  # a trainer and its callbacks name each other, and hold a GPU's memory
        final = read_json(run.final_file)
        if "trouble" in final:
            raise RunError(str(final["trouble"]))
        return Measured(choose_token_loss(final), final["steps"], final["tokens"], final["seconds"])

    def _save(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self.folder / SWEEP_FILE, json.dumps(asdict(self.record), indent=1) + "\n")

    def _give_up(self, numbers: Sequence[int]) -> None:
        """Without their checkpoints; figures and curves stay."""
        for number in numbers:
            shutil.rmtree(RunFolder(self.folder / _name(number)).checkpoints, ignore_errors=True)

    def _finish(self, best: int) -> Sweep:
        done = Sweep(self.folder, self.record.trials, best)
        words = [*self.words, *(f"{key}={value}" for key, value in self.record.trials[best].settings.items())]
        values = open_config(self.config, words).model_dump(by_alias=True, mode="json")
        write_text(self.folder / BEST_FILE, dump_yaml(values))
        curves = {row.name: RunFolder(self.folder / row.name).read_metrics() for row in done.list_rows()}
        write_text(self.folder / PAGE_FILE, build_sweep_page(str(self.folder), done.list_rows(), curves))
        return done
