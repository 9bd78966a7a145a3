"""`glue`: fine-tune a model on the tasks of GLUE with several seeds, and compare their answers. n examples, S seeds."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from rich.console import Console

from maskwright.config import Config
from maskwright.errors import InputError
from maskwright.evaluation.agreement import Agreement
from maskwright.evaluation.statistics import Floats
from maskwright.models.files.model_folder import resolve_folder
from maskwright.runs.eval.glue_files import TaskFiles, find_tasks, write_files
from maskwright.runs.eval.glue_report import GlueReport, build_glue_report
from maskwright.runs.finetune.finetune import TASK_FILE, finetune
from maskwright.runs.finetune.inputs import GivenInputs
from maskwright.runs.finetune.settings import build_run_config, list_seed_folders
from maskwright.runs.folder import RunFolder, find_changes
from maskwright.runs.inputs import open_tokenizer
from maskwright.storage import read_json, read_record, write_text
from maskwright.suggestions import OUT
from maskwright.tasks.config import TaskConfig, build_task_config, load_task_config
from maskwright.tasks.features import Features
from maskwright.tasks.kinds import find_kind
from maskwright.tasks.loader import TaskLoader
from maskwright.tasks.model import TaskModel, answer_examples
from maskwright.tasks.new_model import load_pretrained
from maskwright.tasks.sequence.classification import Classification
from maskwright.terminal import say
from maskwright.training.compute.device import choose_device

DEFAULT_OUT = Path("runs") / "glue"
DEFAULT_SEEDS = 3
_DATA_FOLDER = "data"
_TWO = 2
_TRAINING_SECTIONS = ("optimizer.", "schedule.", "training.")


@dataclass(frozen=True)
class GlueOptions:
    out: Path | None = None
    """The folder of all runs."""
    seeds: int | None = None
    tasks: Sequence[str] | None = None
    """None: all that are there."""
    limit: int | None = None
    """Train on so many first examples of each task."""
    epochs: int | None = None
    learning_rate: float | None = None
    settings: Sequence[str] = ()
    """Of the runs, as `finetune` takes them."""


def evaluate_glue(models: Sequence[str], folder: Path, options: GlueOptions, console: Console) -> GlueReport:
    """Finished runs are taken as they are, unfinished ones go on; files that are refused are refused before any run."""
    if options.limit is not None and options.limit < _TWO:
        raise InputError(f"--limit is {options.limit}; a task needs at least {_TWO} training examples")
    out = options.out or DEFAULT_OUT
    found = find_tasks(folder, options.tasks, lambda text: say(console, text))
    files = [
        write_files(one, out / _DATA_FOLDER / one.task.name, options.limit, lambda text: say(console, text))
        for one in found
    ]
    scores = []
    for name in models:
        model = _OpenModel(name)
        scores.append({one.task.name: _run_task(model, one, out, options, console) for one in files})
    return build_glue_report(models, scores)


class _OpenModel:
    """A model that is read once for the runs of all tasks and seeds, and not at all where these are finished."""

    def __init__(self, name: str) -> None:
        self.name = name

    @cached_property
    def given(self) -> GivenInputs:
        return GivenInputs(pretrained=load_pretrained(resolve_folder(self.name)), tokenizer=open_tokenizer(self.name))


def _run_task(
    model: _OpenModel, files: TaskFiles, out: Path, options: GlueOptions, console: Console
) -> dict[str, list[Agreement]]:
    given = {"epochs": options.epochs, "learning_rate": options.learning_rate}
    config = build_task_config(
        {
            "task": files.task.kind,
            "model": model.name,
            "train": str(files.train),
            "validation": str(files.validation),
            "metric": files.task.metrics[0] if files.task.metrics[0] != "accuracy" else None,
            **{name: value for name, value in given.items() if value is not None},
        }
    )
    folder, num_seeds = out / _name_model(model.name) / files.task.name, options.seeds or DEFAULT_SEEDS
    # A single seed's run lies where it would among several, so that more can be added.
    folders = list_seed_folders(folder, max(num_seeds, _TWO))[:num_seeds]
    runs = [RunFolder(one) for one in folders]
    for seed, run in enumerate(runs):
        _check_same_settings(run, config)
        _check_same_training(run, config, build_run_config(config, run.path, seed, options.settings))
    if not all(run.is_finished for run in runs):
        base = folders[0] if num_seeds == 1 else folder
        finetune(config, base, num_seeds=num_seeds, settings=options.settings, console=console, given=model.given)
    return score_runs(runs, files, config)


def _check_same_settings(run: RunFolder, config: TaskConfig) -> None:
    file = run.path / TASK_FILE
    if not file.is_file():
        return
    started = load_task_config(file).model_dump()
    for key, value in config.model_dump().items():
        if started[key] != value:
            raise InputError(
                f"{run.path} is a run with {key}={started[key]}, this command has {key}={value}; repeat its settings or"
                f" choose another {OUT}"
            )


def _check_same_training(run: RunFolder, config: TaskConfig, wanted: Config) -> None:
    if not run.config_file.is_file():
        return
    changed = find_changes(run, wanted)
    if config.learning_rate is None:  # then it was chosen for the encoder when the run began
        changed.pop("optimizer.learning_rate", None)
    if any(key.startswith(_TRAINING_SECTIONS) for key in changed):
        raise InputError(
            f"{run.path} was begun with other settings of optimizer, schedule or training; repeat them or choose"
            f" another {OUT}"
        )


def _name_model(model: str) -> str:
    return re.sub(r"[^\w.]+", "-", model).strip("-.")


_ANSWERS_FILE = "glue.json"


@dataclass(frozen=True)
class _Answers:
    """Of one held-out set, in the order of its examples."""

    answers: list[float]
    labels: list[float]


def score_runs(runs: Sequence[RunFolder], files: TaskFiles, config: TaskConfig) -> dict[str, list[Agreement]]:
    """The measures of each held-out set, over all seeds."""
    features: dict[tuple[Path, str], Features] = {}
    kept = [_load_answers(run, files, config, features) for run in runs]
    measures = {}
    for name in files.held_out:
        if any(one[name].labels != kept[0][name].labels for one in kept):
            raise InputError(
                f"{_ANSWERS_FILE} in {', '.join(str(run.path) for run in runs)} are of different examples; delete these"
                " files, and the answers are computed anew"
            )
        answers = np.asarray([one[name].answers for one in kept], dtype=float).T
        labels = np.asarray(kept[0][name].labels, dtype=float)
        measures[name] = [Agreement(metric, answers, labels) for metric in files.task.metrics]
    return measures


def _load_answers(
    run: RunFolder, files: TaskFiles, config: TaskConfig, features: dict[tuple[Path, str], Features]
) -> dict[str, _Answers]:
    """`features` are those of held-out sets that another seed's run has answered."""
    path = run.path / _ANSWERS_FILE
    if not path.is_file():
        model = TaskModel.from_pretrained(run.model).to(choose_device("auto"))
        answers = {name: asdict(_answer(model, run, file, config, features)) for name, file in files.held_out.items()}
        write_text(path, json.dumps(answers) + "\n")
    kept = read_record(dict[str, _Answers], read_json(path), path)
    if kept.keys() != files.held_out.keys() or any(len(one.answers) != len(one.labels) for one in kept.values()):
        raise InputError(
            f"{path} does not hold the answers to {', '.join(files.held_out)}; delete it, and they are computed anew"
        )
    return kept


def _answer(
    model: TaskModel, run: RunFolder, file: Path, config: TaskConfig, features: dict[tuple[Path, str], Features]
) -> _Answers:
    """Classes as their numbers, measures as they are."""
    kind, tokenizer = find_kind(config.task), open_tokenizer(str(run.model))
    key = file, tokenizer.backend.to_str()
    if key not in features:
        max_length = config.max_length or model.encoder.max_length
        features[key] = kind.featurize(kind.read(file, config).examples, tokenizer, max_length, config)
    targets = model.task.encode_targets(features[key].examples)
    loader = TaskLoader(features[key], targets, tokenizer, batch_size=config.batch_size, shuffle=False)
    values = answer_examples(model, loader).values
    answers = values.argmax(-1) if isinstance(model.task, Classification) else values[:, 0]
    return _Answers(_list(answers.double().numpy()), _list(targets.double().numpy()))


def _list(values: Floats) -> list[float]:
    return [float(value) for value in values]
