"""Whole runs of named entity recognition: they learn, resume exactly, and tell what they found."""

from __future__ import annotations

import importlib.util
import json
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from interruption import assert_resumes_exactly
from rich.console import Console
from task_lab import Lab, read_final, run, write_conll
from transformers import AutoModelForTokenClassification, AutoTokenizer

from maskwright.errors import InputError, InputWarning
from maskwright.inference.pipeline import pipeline
from maskwright.runs.finetune.finetune import finetune
from maskwright.runs.finetune.inputs import load_task_inputs
from maskwright.runs.folder import RunFolder
from maskwright.tasks.config import TaskConfig
from maskwright.tasks.model import TaskModel
from tolerances import assert_rounded, count_terms, rounding


@pytest.fixture
def config(lab: Lab) -> TaskConfig:
    train, validation = write_conll(lab.folder / "a.conll", 48, 0), write_conll(lab.folder / "b.conll", 24, 1)
    files = {"train": str(train), "validation": str(validation), "text_column": None}
    return lab.config("ner", **files, epochs=8)


def test_a_run_learns_and_leaves_a_model_that_transformers_reads(config: TaskConfig, tmp_path: Path) -> None:
    finished = run(config, tmp_path / "run")
    (figures,) = finished.figures
    assert finished.metric == "f1"
    assert figures["f1"] > 0.95
    assert figures["accuracy"] > 0.95
    assert {name: one["examples"] for name, one in figures["classes"].items()} == {"LOC": 24, "PER": 24}
    if importlib.util.find_spec("nervaluate"):
        assert figures["strict_f1"] == pytest.approx(figures["f1"])
        assert figures["partial_f1"] >= figures["strict_f1"]
    folder = RunFolder(tmp_path / "run")
    assert read_final(folder.path) == figures
    assert folder.read_metrics()[-1]["val_f1"] == pytest.approx(figures["f1"], abs=rounding(1))  # a share of counts
    assert "<td>LOC</td>" in folder.report_file.read_text(encoding="utf-8")

    ours = TaskModel.from_pretrained(folder.model)
    theirs = AutoModelForTokenClassification.from_pretrained(folder.model).eval()
    assert list(theirs.config.id2label.values()) == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    encoded = AutoTokenizer.from_pretrained(folder.model)("my old teacher sees the cat", return_tensors="pt")
    with torch.no_grad():
        expected = theirs(**encoded).logits
    num_terms = count_terms(num_layers=2, width=32, length=32)
    assert_rounded(ours(**encoded).logits, expected, num_terms, magnitude=1.0)
    text = "my old teacher follows the green house"
    found = pipeline("ner", folder.path, device="cpu")(text)
    assert [(one["entity_group"], text[one["start"] : one["end"]]) for one in found] == [
        ("PER", "old teacher"),
        ("LOC", "green house"),
    ]


def test_an_interrupted_run_ends_as_an_uninterrupted_one(
    config: TaskConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config.model_copy(update={"epochs": 2, "patience": 2, "tag_scheme": "bioes"})
    assert_resumes_exactly(partial(run, config), tmp_path, monkeypatch, dies_at=8)


def test_the_user_is_told_of_tags_entities_and_what_was_split(
    config: TaskConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(config.train)
    long_sentence = "the\tO\ncat\tB-PER\n" * 20 + "\n"
    path.write_text(long_sentence + path.read_text(encoding="utf-8"), encoding="utf-8")
    finetune(
        config.model_copy(update={"epochs": 1}), tmp_path / "run", settings=["training.device=cpu"], console=Console()
    )
    told = capsys.readouterr().out
    assert "train: 49 sentences of" in told
    assert "116 entities, BIO tags" in told
    assert "train: 1 sentences have more than 32 tokens and are split between words" in told
    assert "labels: LOC 48, PER 68 entities" in told
    assert read_final(tmp_path / "run")["train_examples"] == 50


def test_without_nervaluate_the_run_is_finished_and_says_what_is_missing(
    config: TaskConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nervaluate.evaluator", None)
    with pytest.warns(InputWarning, match=r"need an extra, pip install 'maskwright\[eval\]'"):
        run(config.model_copy(update={"epochs": 1}), tmp_path / "run")
    figures = read_final(tmp_path / "run")
    assert "f1" in figures
    assert "strict_f1" not in figures


def test_wrong_input_is_refused_before_anything_is_written(config: TaskConfig, tmp_path: Path) -> None:
    held_out = tmp_path / "other.conll"
    held_out.write_text("cat\tB-ORG\n", encoding="utf-8")
    other = config.model_copy(update={"validation": str(held_out)})
    with pytest.raises(InputError, match=r"other\.conll:1 has the label 'B-ORG', which no training example has"):
        run(other, tmp_path / "out")
    with pytest.raises(
        InputError, match="--metric is 'matthews', which this task does not have; known are accuracy, f1"
    ):
        run(config.model_copy(update={"metric": "matthews"}), tmp_path / "out")
    with pytest.raises(InputError, match="--tag-scheme is for ner"):
        run(config.model_copy(update={"task": "classification", "tag_scheme": "io"}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_json_lines_are_learned_as_conll_files_are(config: TaskConfig) -> None:
    paths = []
    for name in (config.train, config.validation):
        sentences = [part.split("\n") for part in Path(name).read_text(encoding="utf-8").strip().split("\n\n")]
        rows = [[line.split("\t") for line in sentence] for sentence in sentences]
        records = [{"tokens": [one[0] for one in row], "ner_tags": [one[1] for one in row]} for row in rows]
        path = Path(name).with_suffix(".jsonl")
        path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
        paths.append(str(path))
    other = config.model_copy(update={"train": paths[0], "validation": paths[1]})
    inputs = [load_task_inputs(one, lambda text: None) for one in (config, other)]
    assert inputs[0].fingerprint == inputs[1].fingerprint
    assert torch.equal(inputs[0].train.targets, inputs[1].train.targets)
