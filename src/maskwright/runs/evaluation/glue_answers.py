"""What fine-tuned models answer to held-out examples, kept beside each of them. n examples, S seeds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from maskwright.errors import InputError
from maskwright.evaluation.agreement import Agreement
from maskwright.evaluation.statistics import Floats
from maskwright.runs.evaluation.glue_files import TaskFiles
from maskwright.runs.folder import RunFolder
from maskwright.runs.inputs import open_tokenizer
from maskwright.storage import read_json, read_record, write_text
from maskwright.tasks.config import TaskConfig
from maskwright.tasks.kinds import find_kind
from maskwright.tasks.loader import TaskLoader
from maskwright.tasks.model import TaskModel, answer_examples
from maskwright.tasks.sequence.classification import Classification
from maskwright.training.device import choose_device

_ANSWERS_FILE = "glue.json"


@dataclass(frozen=True)
class _Answers:
    """Of one held-out set, in the order of its examples."""

    answers: list[float]
    labels: list[float]


def score_runs(runs: Sequence[RunFolder], files: TaskFiles, config: TaskConfig) -> dict[str, list[Agreement]]:
    """The measures of each held-out set, over all seeds."""
    kept = [_load_answers(run, files, config) for run in runs]
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


def _load_answers(run: RunFolder, files: TaskFiles, config: TaskConfig) -> dict[str, _Answers]:
    path = run.path / _ANSWERS_FILE
    if not path.is_file():
        model = TaskModel.from_pretrained(run.model).to(choose_device("auto"))
        answers = {name: asdict(_answer(model, run, file, config)) for name, file in files.held_out.items()}
        write_text(path, json.dumps(answers) + "\n")
    kept = read_record(dict[str, _Answers], read_json(path), path)
    if kept.keys() != files.held_out.keys() or any(len(one.answers) != len(one.labels) for one in kept.values()):
        raise InputError(
            f"{path} does not hold the answers to {', '.join(files.held_out)}; delete it, and they are computed anew"
        )
    return kept


def _answer(model: TaskModel, run: RunFolder, file: Path, config: TaskConfig) -> _Answers:
    """Classes as their numbers, measures as they are."""
    kind, tokenizer = find_kind(config.task), open_tokenizer(str(run.model))
    max_length = config.max_length or model.encoder.max_length
    features = kind.featurize(kind.read(file, config).examples, tokenizer, max_length, config)
    targets = model.task.encode_targets(features.examples)
    loader = TaskLoader(features, targets, tokenizer, batch_size=config.batch_size, shuffle=False)
    values = answer_examples(model, loader).values
    answers = values.argmax(-1) if isinstance(model.task, Classification) else values[:, 0]
    return _Answers(_list(answers.double().numpy()), _list(targets.double().numpy()))


def _list(values: Floats) -> list[float]:
    return [float(value) for value in values]
