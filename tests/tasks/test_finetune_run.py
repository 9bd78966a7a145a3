"""Whole fine-tuning runs: they learn, resume exactly, go back to their best, and refuse what is wrong in time."""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from interruption import assert_resumes_exactly
from rich.console import Console
from task_lab import SETTINGS, Lab, build_records, read_final, run, write_lines
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from maskwright.errors import InputError, RunError, RunInterruptedError
from maskwright.runs.duration import DurationNotice
from maskwright.runs.finetune.finetune import finetune
from maskwright.runs.finetune.inputs import load_task_inputs
from maskwright.runs.folder import RunFolder
from maskwright.tasks.config import load_task_config
from maskwright.tasks.model import TaskModel
from maskwright.training import checkpoint_writer
from maskwright.training.trainer import Trainer
from tolerances import assert_rounded, count_terms, rounding

SHORT = "maskwright.runs.finetune.finetune.SHORT_TRAINING_S"


class KilledError(BaseException):
    """As final as a kill: no handler of ours catches it."""


@pytest.mark.parametrize(
    ("task", "column", "metric", "least"),
    [
        pytest.param("classification", "label", "accuracy", 0.95, marks=pytest.mark.slow),  # as pairs
        ("multi-label", "labels", "micro_f1", 0.6),
        ("pairs", "label", "accuracy", 0.95),
        pytest.param("regression", "score", "pearson", 0.9, marks=pytest.mark.slow),  # as a student of test_teacher.py
    ],
)
def test_a_run_learns_its_task_and_leaves_a_model_that_transformers_reads(
    lab: Lab, tmp_path: Path, task: str, column: str, metric: str, least: float
) -> None:
    second = "other" if task == "pairs" else None
    config = lab.config(task, label_column=column, second_column=second, epochs=8)
    finished = run(config, tmp_path / "run")
    (figures,) = finished.figures
    assert finished.metric == metric
    assert figures[metric] > least
    folder = RunFolder(tmp_path / "run")
    assert read_final(folder.path) == figures
    assert load_task_config(folder.path / "task.yaml") == config
    assert f"{figures[metric]:.4f}" in folder.report_file.read_text(encoding="utf-8")
    num_terms = count_terms(num_layers=2, width=32, length=32)
    assert folder.read_metrics()[-1][f"val_{metric}"] == pytest.approx(figures[metric], abs=rounding(num_terms))

    ours = TaskModel.from_pretrained(folder.model)
    theirs = AutoModelForSequenceClassification.from_pretrained(folder.model).eval()
    assert theirs.config.num_labels == ours.task.num_outputs
    text = "the cat likes the green house"
    encoded = AutoTokenizer.from_pretrained(folder.model)(
        *([text] if second is None else [text, "it rains"]), return_tensors="pt"
    )
    with torch.no_grad():
        expected = theirs(**encoded).logits
    assert_rounded(ours(**encoded).logits, expected, num_terms, magnitude=1.0)
    if task == "pairs":
        assert theirs.config.id2label[int(theirs(**encoded).logits.argmax())] == "good"


@pytest.mark.parametrize("killed_at", [pytest.param(5, marks=pytest.mark.slow), 13])
def test_an_interrupted_run_ends_as_an_uninterrupted_one(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: int
) -> None:
    """In the first and in the second epoch, with dropout, layer-wise rates and a watch on the best epoch."""
    config = lab.config(layer_decay=0.8, patience=2, freeze_layers=0)
    assert_resumes_exactly(partial(run, config), tmp_path, monkeypatch, dies_at=killed_at)


def test_frozen_layers_come_out_as_they_went_in(lab: Lab, tmp_path: Path) -> None:
    config = lab.config(freeze_layers=1, epochs=1)
    before = load_task_inputs(config, lambda text: None).encoder.state_dict()
    run(config, tmp_path / "run")
    after = TaskModel.from_pretrained(tmp_path / "run").encoder.state_dict()
    changed = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
    assert changed
    assert all(name.startswith("layers.1.") for name in changed)


def test_patience_ends_the_run_and_brings_the_best_epoch_back(lab: Lab, tmp_path: Path) -> None:
    """The held-out labels are turned round, so every epoch that learns is a worse one."""
    turned = [{**one, "label": {"good": "bad", "bad": "good"}[one["label"]]} for one in build_records(32, seed=1)]
    write_lines(lab.folder / "validation.jsonl", turned)
    run(lab.config(epochs=12, patience=2), tmp_path / "run")
    figures = read_final(tmp_path / "run")
    accuracies = [line["val_accuracy"] for line in RunFolder(tmp_path / "run").read_metrics() if "epoch_end" in line]
    assert figures["epochs"] == len(accuracies) < 12
    assert figures["accuracy"] == max(accuracies) > accuracies[-1]


@pytest.mark.parametrize(
    ("settings", "kept"),
    [pytest.param((), None, marks=pytest.mark.slow), (("training.keep_every_steps=16",), {"step-16"})],
)
def test_a_finished_run_keeps_no_checkpoints_but_those_asked_for(
    lab: Lab, tmp_path: Path, settings: tuple[str, ...], kept: set[str] | None
) -> None:
    run(lab.config(epochs=3, patience=2), tmp_path / "run", "training.checkpoint_every_steps=4", *settings)
    folder = RunFolder(tmp_path / "run")
    found = {path.name for path in folder.checkpoints.iterdir()} if folder.checkpoints.exists() else None
    assert found == kept
    assert TaskModel.from_pretrained(folder.model).task.num_outputs == 2


def test_a_run_whose_checkpoints_could_not_be_written_finishes(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_the_disk(folder: Path, *others: Any) -> Path:
        raise RunError(f"cannot write {folder}: no space left")

    monkeypatch.setattr("maskwright.training.checkpoint_writer.write_checkpoint", fill_the_disk)
    monkeypatch.setattr(SHORT, 0.0)
    run(lab.config(epochs=1), tmp_path / "run")
    assert read_final(tmp_path / "run")["epochs"] == 1


def test_a_short_training_writes_no_checkpoint_and_begins_again_if_it_is_cut_off_after_its_end(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    written: list[Path] = []
    write = checkpoint_writer.write_checkpoint
    monkeypatch.setattr(
        checkpoint_writer, "write_checkpoint", lambda folder, *rest: (written.append(folder), write(folder, *rest))[1]
    )
    with monkeypatch.context() as patch:
        patch.setattr("maskwright.runs.finetune.finetune.write_task_report", interrupt)
        with pytest.raises(RunInterruptedError, match="no checkpoint was saved yet, and the same command begins again"):
            run(lab.config(epochs=1), tmp_path / "run")
    run(lab.config(epochs=1), tmp_path / "run")
    assert not written
    assert read_final(tmp_path / "run")["epochs"] == 1
    monkeypatch.setattr(SHORT, 0.0)
    run(lab.config(epochs=1), tmp_path / "longer")
    assert written


def test_seeds_have_runs_of_their_own_and_a_summary(lab: Lab, tmp_path: Path) -> None:
    out = tmp_path / "seeds"
    finished = run(lab.config(epochs=1), out, num_seeds=3)
    losses = [read_final(out / f"seed-{seed}")["loss"] for seed in range(3)]
    assert len(set(losses)) == 3
    assert [one["loss"] for one in finished.figures] == losses
    summary = json.loads((out / "seeds.json").read_text(encoding="utf-8"))["scores"]["loss"]
    assert summary["mean"] == pytest.approx(sum(losses) / 3)
    assert summary["deviation"] == pytest.approx(float(torch.tensor(losses, dtype=torch.float64).std()))


@pytest.mark.parametrize("place", ["write_task_report", pytest.param("write_summary", marks=pytest.mark.slow)])
def test_a_signal_after_training_is_answered_and_the_same_command_finishes_the_seeds(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def interrupt(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(SHORT, 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(f"maskwright.runs.finetune.finetune.{place}", interrupt)
        with pytest.raises(RunInterruptedError, match=r"seed-0.* is kept, and the same command goes on") as ending:
            run(lab.config(epochs=1), tmp_path / "seeds", num_seeds=2)
    assert ending.value.exit_code == 143
    run(lab.config(epochs=1), tmp_path / "seeds", num_seeds=2)
    assert len(json.loads((tmp_path / "seeds" / "seeds.json").read_text())["seeds"]) == 2
    with pytest.raises(InputError, match="holds a finished run"):
        run(lab.config(epochs=1), tmp_path / "seeds", num_seeds=2)


def test_more_seeds_are_added_to_those_that_are_finished(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, fitted = tmp_path / "seeds", []
    run(lab.config(epochs=1), out, num_seeds=2)
    fit = Trainer.fit
    monkeypatch.setattr(Trainer, "fit", lambda self, *args, **rest: (fitted.append(1), fit(self, *args, **rest))[1])
    run(lab.config(epochs=1), out, num_seeds=3)
    assert len(fitted) == 1
    with pytest.raises(InputError, match="seed-0 was trained with other optimizer or schedule settings"):
        run(lab.config(epochs=1), out, "optimizer.weight_decay=0.5", num_seeds=4)
    assert len(json.loads((out / "seeds.json").read_text(encoding="utf-8"))["seeds"]) == 3


def test_a_finished_run_is_replaced_only_when_asked(lab: Lab, tmp_path: Path) -> None:
    config = lab.config(epochs=1)
    run(config, tmp_path / "run")
    before = read_final(tmp_path / "run")
    with pytest.raises(InputError, match=r"holds a finished run; choose another --out .*, or add --overwrite"):
        run(config, tmp_path / "run")
    with pytest.raises(InputError, match="is a single run; choose another --out"):
        run(config, tmp_path / "run", num_seeds=2)
    run(lab.config(epochs=1, learning_rate=1e-4), tmp_path / "run", overwrite=True)
    assert read_final(tmp_path / "run")["loss"] != before["loss"]
    assert load_task_config(tmp_path / "run" / "task.yaml").learning_rate == 1e-4


def test_an_unfinished_run_goes_on_only_with_its_own_settings(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(self: Trainer, *args: Any, **rest: Any) -> None:
        raise KilledError

    monkeypatch.setattr(Trainer, "fit", die)
    with pytest.raises(KilledError):
        run(lab.config(), tmp_path / "run")
    with pytest.raises(InputError, match="a run with batch_size=8, this command has batch_size=4"):
        run(lab.config(batch_size=4), tmp_path / "run")
    write_lines(lab.folder / "train.jsonl", build_records(60, seed=5))
    with pytest.raises(InputError, match="unfinished run on other texts"):
        run(lab.config(), tmp_path / "run")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"task": "sentiment"}, "there is no task 'sentiment'; known are"),
        ({"task": "pairs"}, "no two columns known to hold a pair"),
        ({"task": "regression", "label_column": "label"}, "regression learns numbers: use classification"),
        ({"label_column": "gold"}, r"has no column 'gold'; it has 'text', 'label'"),
        ({"metric": "f1"}, "--metric is 'f1', which this task does not have; known are accuracy, macro_f1, matthews"),
        ({"max_length": 999}, "--max-length is 999, .* takes 32; lower it"),
        ({"freeze_layers": 9}, "9 layers are to be frozen, the encoder has 2"),
        ({"class_weights": "1"}, "has 1 numbers, there are 2 classes"),
        ({"validation": "nowhere.tsv"}, "no file at nowhere.tsv"),
        ({"model": "./nowhere"}, "no model folder at ./nowhere"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_written(
    lab: Lab, tmp_path: Path, values: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        run(lab.config(**{"label_column": "label", **values}), tmp_path / "out" / "run")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("training.epochs=5", r"give --epochs \(epochs= in Python\) instead"),
        ("masking.ratio=0.3", "'masking.ratio=0.3' has no effect on fine-tuning"),
        ("training.mode=clm", "has no effect on fine-tuning"),
        ("optimizer.typo=1", "unknown configuration key 'optimizer.typo'"),
        ("five", "'five' is not an override"),
    ],
)
def test_settings_without_effect_are_refused(lab: Lab, tmp_path: Path, setting: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        run(lab.config(), tmp_path / "run", setting)


def test_labels_unseen_in_training_and_mixed_forms_are_refused(lab: Lab, tmp_path: Path) -> None:
    write_lines(lab.folder / "validation.jsonl", [{"text": "the cat", "label": "fair"}])
    with pytest.raises(InputError, match=r"validation\.jsonl:1 has the label 'fair', which no training example has"):
        run(lab.config(), tmp_path / "run")
    write_lines(lab.folder / "validation.jsonl", [{"sentence1": "a", "sentence2": "b", "label": "good"}])
    with pytest.raises(InputError, match=r"holds pairs .* single texts"):
        run(lab.config(text_column=None), tmp_path / "run")


def test_the_user_is_told_what_was_guessed_and_what_was_lost(lab: Lab) -> None:
    records = [*build_records(20, seed=0), {"text": " ", "label": "good"}, {"text": "the cat " * 40, "label": "bad"}]
    write_lines(lab.folder / "train.jsonl", records)
    said: list[str] = []
    load_task_inputs(lab.config(text_column=None), said.append)
    told = "\n".join(said)
    assert "21 examples of" in told
    assert "text 'text', label 'label'; 1 with an empty text left out" in told
    assert "train: 1 examples have more than 32 tokens and lose their end" in told
    assert "labels: bad" in told


def test_the_pooler_of_a_published_bert_is_kept_and_its_classifier_is_new(lab: Lab, tmp_path: Path) -> None:
    run(lab.config(epochs=1), tmp_path / "first")
    first = TaskModel.from_pretrained(tmp_path / "first").task_head.state_dict()
    config = lab.config("regression", model=str(tmp_path / "first"), label_column="score")
    inputs = load_task_inputs(config, lambda text: None)
    second = inputs.build_model(seed=3).task_head.state_dict()
    assert torch.equal(first["transform.dense.weight"], second["transform.dense.weight"])
    assert second["transform.output.weight"].shape == (1, 32)
    assert float(second["transform.output.bias"]) == pytest.approx(float(inputs.train.targets.mean()))


@pytest.mark.parametrize("task", [pytest.param("classification", marks=pytest.mark.slow), "similarity"])
def test_a_long_run_is_announced_and_not_changed_by_that(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    columns = {"label_column": "label"} if task == "classification" else {"second_column": "other"}
    config = lab.config(task, **columns)
    with monkeypatch.context() as patch:
        patch.setattr(DurationNotice, "on_train_begin", lambda notice: None)
        run(config, tmp_path / "unmeasured")
    monkeypatch.setattr("maskwright.runs.duration._LONG_S", 0.0)
    monkeypatch.setattr("maskwright.runs.duration._TIMED_S", 0.0)
    console = Console(file=StringIO())
    finetune(config, tmp_path / "measured", settings=SETTINGS, console=console)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    (number,) = (number for number, line in enumerate(lines) if line.startswith("about "))
    assert lines[number].endswith(" tokens/s on cpu; Ctrl-C is safe, the same command resumes")
    assert lines[number + 1].startswith("shorter: fewer --epochs")
    assert lines[number + 2].startswith("step ")
    weights = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("unmeasured", "measured")]
    assert weights[0] == weights[1]
