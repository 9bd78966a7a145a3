"""A teacher's answers beside the labels: the loss is the plain formula, runs learn from it and resume exactly."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from interruption import assert_resumes_exactly
from task_lab import Lab, build_records, read_final, run, write_lines

from maskwright.batch import IGNORED_LABEL
from maskwright.errors import InputError
from maskwright.runs.finetune.inputs import load_task_inputs
from maskwright.tasks.model import TaskModel
from maskwright.tasks.sequence.taught import TaughtClassification, TaughtRegression, add_answers
from maskwright.text.tokenizer.tokenizer import load_tokenizer

CLASSES = ("bad", "good", "so-so")
NUM_ROWS, NUM_DOCUMENTS = 3, 4


def make_targets(labels: torch.Tensor, taught: torch.Tensor, num_missing: int) -> torch.Tensor:
    """(B, N, 1 + C), of which the last documents are not there."""
    targets = add_answers(labels, taught)
    targets[-num_missing:] = torch.nan
    return targets.view(NUM_ROWS, NUM_DOCUMENTS, -1)


def test_the_loss_of_classes_is_the_formula() -> None:
    torch.manual_seed(0)
    total, temperature, weight = NUM_ROWS * NUM_DOCUMENTS, 3.0, 0.3
    logits, taught = torch.randn(total, 3, dtype=torch.float64), torch.randn(total, 3, dtype=torch.float64)
    labels = torch.randint(0, 3, (total,))
    class_weights = [0.5, 1.0, 2.0]
    task = TaughtClassification(CLASSES, class_weights, temperature=temperature, hard_label_weight=weight)
    kept = total - 2
    expected = 0.0
    for number in range(kept):
        own, theirs = ((one[number] / temperature).softmax(-1) for one in (logits, taught))
        soft = float((theirs * (theirs.log() - own.log())).sum()) * temperature**2
        label = int(labels[number])
        hard = -class_weights[label] * float(logits[number].softmax(-1)[label].log())
        expected += weight * hard + (1 - weight) * soft
    targets = make_targets(labels, taught, total - kept)
    sums = task.loss_sums(logits.view(NUM_ROWS, NUM_DOCUMENTS, 3), targets)
    assert float(sums.loss_sum) == pytest.approx(expected, rel=total * 3 * torch.finfo(torch.float32).eps)
    assert int(sums.num_labelled) == kept
    plain = labels.masked_fill(torch.arange(total) >= kept, IGNORED_LABEL).view(NUM_ROWS, NUM_DOCUMENTS)
    held_out = task.loss_sums(logits.view(NUM_ROWS, NUM_DOCUMENTS, 3), plain)
    assert torch.equal(held_out.figures, sums.figures)
    assert float(held_out.loss_sum) == pytest.approx(_cross_entropy(logits, plain, class_weights), rel=1e-5)


def _cross_entropy(logits: torch.Tensor, labels: torch.Tensor, weights: list[float]) -> float:
    wanted = [(number, int(label)) for number, label in enumerate(labels.flatten()) if label != IGNORED_LABEL]
    return -sum(weights[label] * float(logits[number].softmax(-1)[label].log()) for number, label in wanted)


def test_the_loss_of_numbers_is_the_formula() -> None:
    torch.manual_seed(0)
    answers, labels, taught = torch.randn(3, 12)
    task = TaughtRegression(hard_label_weight=0.3)
    targets = make_targets(labels, taught[:, None], 2)
    sums = task.loss_sums(answers.view(NUM_ROWS, NUM_DOCUMENTS, 1), targets)
    hard, soft = ((answers - one)[:10].double().square().sum() for one in (labels, taught))
    assert float(sums.loss_sum) == pytest.approx(float(0.3 * hard + 0.7 * soft), rel=1e-5)


@pytest.fixture(scope="module")
def teachers(encoder_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model for each task that knows it."""
    folder = tmp_path_factory.mktemp("teachers")
    for name, seed in (("train", 0), ("validation", 1)):
        write_lines(folder / f"{name}.jsonl", build_records(64, seed))
    lab, columns = Lab(folder, encoder_folder), {"classification": "label", "regression": "score"}
    runs = {task: run(lab.config(task, label_column=name, epochs=8), folder / task) for task, name in columns.items()}
    return {task: one.runs[0].model for task, one in runs.items()}


@pytest.mark.parametrize(
    ("task", "column", "metric", "least"),
    [
        pytest.param("classification", "label", "accuracy", 0.9, marks=pytest.mark.slow),
        ("regression", "score", "pearson", 0.8),
    ],
)
def test_a_student_learns_from_a_teacher_alone(
    lab: Lab, teachers: dict[str, Path], task: str, column: str, metric: str, least: float
) -> None:
    teacher = teachers[task]
    records = build_records(64, seed=0)
    for number, record in enumerate(records):  # labels that say nothing
        record |= {"label": ["good", "bad"][number % 2], "score": float(number % 5)}
    wrong = str(write_lines(lab.folder / "wrong.jsonl", records))
    config = lab.config(task, label_column=column, train=wrong, epochs=8, teacher=str(teacher), hard_label_weight=0.0)
    (figures,) = run(config, lab.folder / "taught").figures
    assert figures[metric] > least
    saved = TaskModel.from_pretrained(lab.folder / "taught" / "model").task
    assert not isinstance(saved, TaughtClassification | TaughtRegression)


def test_the_answers_are_those_of_the_teacher_in_the_order_of_the_classes(lab: Lab, teachers: dict[str, Path]) -> None:
    teacher = lab.folder / "teacher"
    shutil.copytree(teachers["classification"], teacher)
    config_file = teacher / "config.json"
    values = json.loads(config_file.read_text())
    values |= {"id2label": {"0": "good", "1": "bad"}, "label2id": {"good": 0, "bad": 1}}  # the other way round
    config_file.write_text(json.dumps(values))
    said: list[str] = []
    inputs = load_task_inputs(lab.config(teacher=str(teacher)), said.append)
    model, tokenizer = TaskModel.from_pretrained(teacher), load_tokenizer(teacher)
    for number in (0, 7, 63):
        text = inputs.train.features.examples[number].text
        logits = model(**tokenizer([text], return_tensors="pt")).logits[0]
        expected = logits.flip(0) if inputs.task.classes == ("bad", "good") else logits
        torch.testing.assert_close(inputs.train.targets[number, 1:], expected)
    assert inputs.validation.targets.ndim == 1
    assert any(line.startswith("teacher: ") and "on the training examples" in line for line in said)


def test_a_run_with_a_teacher_resumes_exactly(
    lab: Lab, teachers: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = lab.config(teacher=str(teachers["classification"]), temperature=4.0)
    assert_resumes_exactly(lambda out, setting: run(config, out, setting), tmp_path, monkeypatch, dies_at=7)
    assert read_final(tmp_path / "whole")["accuracy"] > 0.5


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hard_label_weight": 0.3}, "--hard-label-weight is for a --teacher"),
        ({"temperature": 2.0}, "--temperature is for a --teacher"),
        (
            {"task": "multi-label", "label_column": "labels", "teacher": "x"},
            "--teacher is for classification and pairs",
        ),
        ({"task": "regression", "label_column": "score", "temperature": 2.0}, "--temperature is for classification"),
        ({"task": "regression", "label_column": "score", "teacher": "TEACHER"}, "not fine-tuned for regression"),
        ({"label_column": "text", "teacher": "TEACHER"}, "knows the classes bad, good, the training examples have"),
        ({"teacher": "ENCODER"}, "expected a model fine-tuned for a task"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    lab: Lab, teachers: dict[str, Path], values: dict[str, Any], message: str
) -> None:
    named = {"TEACHER": str(teachers["classification"]), "ENCODER": str(lab.model)}
    values = {key: named.get(value, value) for key, value in values.items()}
    if values.get("label_column") == "text":
        records = [{"text": f"{word} it rains", "label": word} for word in ("wet", "dry") for _ in range(8)]
        values = values | {"label_column": "label", "train": str(write_lines(lab.folder / "other.jsonl", records))}
        values |= {"validation": values["train"]}
    with pytest.raises(InputError, match=message):
        run(lab.config(**{"task": "classification", **values}), lab.folder / "run")
