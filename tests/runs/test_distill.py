"""Distillation: a student learns from its teacher in a run, which resumes exactly; what cannot be is refused."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from transformers import AutoModelForMaskedLM, AutoTokenizer

import maskwright as mw
from maskwright.config import build_config
from maskwright.errors import InputError
from maskwright.models.files.safetensors_file import read_tensors
from maskwright.runs.pause import RunPaused
from maskwright.runs.pretrain import FinishedRun, pretrain
from tolerances import assert_rounded, count_terms

QUIET = Console(quiet=True)
TEXTS = [f"the {colour} house number {number} stands near the old bridge" for number in range(60) for colour in "rgb"]
SETTINGS = {
    "data.max_length": 32,
    "data.validation_share": 0.2,
    "training.batch_tokens": 256,
    "training.precision": "fp32",
    "training.epochs": 40,
    "optimizer.learning_rate": 2e-3,
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def teacher(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    values = {
        "run": {"name": "teacher", "out": str(tmp_path_factory.mktemp("teacher"))},
        "model": {"variant": "tiny", "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2},
        "tokenizer": {"vocab_size": 120},
        "data": {"train": str(text), "max_length": 32},
        "optimizer": {"learning_rate": 3e-3},
        "training": {"max_steps": 60, "epochs": 40, "batch_tokens": 256, "precision": "fp32"},
    }
    return pretrain(build_config(values), console=QUIET).folder.path


def distill(teacher: Any, text: Path, out: Path, steps: int = 12, **options: Any) -> FinishedRun:
    settings = {**SETTINGS, "training.max_steps": steps, **options.pop("settings", {})}
    return mw.distill(teacher, text, out=out, settings=settings, console=QUIET, **{"layers": 2, **options})


@pytest.fixture(scope="module")
def student(teacher: Path, text: Path, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return distill(teacher, text, tmp_path_factory.mktemp("student") / "small")


def test_the_student_learns_and_both_are_compared(student: FinishedRun, teacher: Path) -> None:
    figures, taught = student.figures, mw.MaskedLanguageModel.from_pretrained(teacher)
    assert figures["mlm_loss"] < figures["loss_before"] - 0.1
    assert figures["teacher_loss"] == pytest.approx(_evaluate(taught, student), rel=1e-5)
    assert figures["parameters"] < figures["teacher_parameters"] == sum(p.numel() for p in taught.parameters())
    assert min(figures["encoder_tokens_per_s"], figures["teacher_encoder_tokens_per_s"]) > 0
    lines = [line for line in student.folder.read_metrics() if "val_soft_label_loss" in line]
    assert lines[-1]["val_soft_label_loss"] < lines[0]["val_soft_label_loss"]
    assert "of the teacher's" in student.folder.report_file.read_text()


def _evaluate(model: mw.MaskedLanguageModel, run: FinishedRun) -> float:
    """The loss of a model on what the run held out, under the same masks."""
    from maskwright.runs.inputs import load_data
    from maskwright.training.held_out import evaluate

    config = mw.load_config(run.folder.config_file)
    data = load_data(config, run.folder.tokenizer, lambda text: None)
    model.masker = run.model.masker
    return evaluate(model, data.validation.epoch(0)).token_loss


def test_the_result_is_an_ordinary_model(student: FinishedRun, tmp_path: Path) -> None:
    exported = mw.export(student.folder.path, out=tmp_path / "hf", console=QUIET)
    ids = AutoTokenizer.from_pretrained(exported)("the red house", return_tensors="pt")
    theirs = AutoModelForMaskedLM.from_pretrained(exported).eval()
    assert len(theirs.bert.encoder.layer) == 2
    ours = mw.MaskedLanguageModel.from_pretrained(student.folder.path)
    assert type(ours) is mw.MaskedLanguageModel
    assert_rounded(theirs(**ids).logits, ours(ids["input_ids"]).logits, count_terms(num_layers=2, width=32, length=32))


@pytest.mark.parametrize("objective", [pytest.param("distilbert", marks=pytest.mark.slow), "minilm"])
def test_a_run_that_is_paused_resumes_exactly(objective: str, teacher: Path, text: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"objective": objective, "width": 16} if objective == "minilm" else {}
    whole = distill(teacher, text, tmp_path / "whole", steps=6, **options)
    config = build_config({**whole_config(whole), "run": {"name": "parts", "out": str(tmp_path)}})
    with pytest.raises(RunPaused):
        pretrain(config, console=QUIET, pause_at=0.5)
    resumed = pretrain(config, console=QUIET)
    assert resumed.figures["steps"] == 6
    for name, tensor in read_tensors(whole.folder.model / "model.safetensors").items():
        assert torch.equal(tensor, read_tensors(resumed.folder.model / "model.safetensors")[name]), name
    for figure in ("loss", "loss_before", "teacher_loss"):
        assert resumed.figures[figure] == whole.figures[figure]


def whole_config(run: FinishedRun) -> dict[str, Any]:
    return mw.load_config(run.folder.config_file).model_dump(by_alias=True)


def test_a_student_starts_as_the_layers_that_are_named(teacher: Path, text: Path, tmp_path: Path) -> None:
    run = distill(teacher, text, tmp_path / "run", steps=1, settings={"distillation.from_layers": [1, 2]})
    default = distill(teacher, text, tmp_path / "default", steps=1)
    rate = 2e-3  # of the one step, which moves no weight much further
    theirs = mw.MaskedLanguageModel.from_pretrained(teacher).state_dict()
    for one, layers in ((run, [1, 2]), (default, [0, 3])):
        for name, tensor in one.model.state_dict().items():
            source = name
            for own, taught in enumerate(layers):
                if f"layers.{own}." in name:
                    source = name.replace(f"layers.{own}.", f"layers.{taught}.")
            assert float((tensor - theirs[source]).abs().max()) < 2 * rate, name


def test_a_teacher_without_a_head_teaches_attention_and_states(teacher: Path, text: Path, tmp_path: Path) -> None:
    mw.BERT.from_pretrained(teacher).save_pretrained(tmp_path / "alone")
    mw.load_tokenizer(teacher / "model").save(tmp_path / "alone")
    with pytest.raises(InputError, match=r"encoder without a masked-language-model head.*minilm"):
        distill(tmp_path / "alone", text, tmp_path / "run")
    settings = {"distillation.hidden_weight": 2}
    with pytest.warns(UserWarning, match="without a prediction head"):
        run = distill(tmp_path / "alone", text, tmp_path / "run", steps=2, objective="minilm", settings=settings)
    assert 0 < run.figures["hidden_loss"] < 2
    assert "teacher_loss" not in run.figures
    assert run.figures["teacher_parameters"] > run.figures["parameters"]


def test_a_teacher_in_memory(teacher: Path, text: Path, tmp_path: Path) -> None:
    model = mw.MaskedLanguageModel.from_pretrained(teacher)
    run = distill(model, text, tmp_path / "run", steps=1, tokenizer=mw.load_tokenizer(teacher / "model"))
    assert run.figures["steps"] == 1


def test_a_student_of_ones_own(teacher: Path, student: FinishedRun, text: Path, tmp_path: Path) -> None:
    config = whole_config(student)
    config |= {"run": {"name": "own", "out": str(tmp_path)}, "model": {"from": str(student.folder.path)}}
    run = pretrain(build_config(config), console=QUIET)
    assert run.figures["loss_before"] == pytest.approx(student.figures["mlm_loss"], rel=1e-5)
    assert run.figures["teacher_loss"] == pytest.approx(student.figures["teacher_loss"], rel=1e-5)
    assert run.figures["soft_label_loss"] > 0
    config["distillation"] |= {"from_layers": [0, 1]}
    with pytest.raises(InputError, match="is the student, with layers of its own"):
        pretrain(build_config(config | {"run": {"name": "other", "out": str(tmp_path)}}), console=QUIET)


def test_the_doctor_knows_the_teacher(teacher: Path, student: FinishedRun, tmp_path: Path) -> None:
    config = build_config({**whole_config(student), "run": {"name": "checked", "out": str(tmp_path)}})
    findings = {one.area: one.text for one in mw.doctor(config).findings}
    assert findings["model"].startswith(f"student of {teacher}, 2 layers x 32")
    num_bytes = 4 * (student.figures["parameters"] + student.figures["teacher_parameters"])
    weights = re.search(r"weights ([\d.]+) kB", findings["memory"])
    assert weights is not None
    assert float(weights[1]) == pytest.approx(num_bytes / 1e3, rel=0.01)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 4}, "to have 4 layers and its teacher .* has 4; give it fewer"),
        ({"layers": 0}, "layers is 0"),
        ({"width": 16}, "16 wide, the teacher 32.*minilm"),
        ({"objective": "tinybert"}, "'distillation.objective' is 'tinybert'"),
        (
            {"settings": {"distillation.from_layers": [0, 7]}},
            "from_layers is .*from 0 to 3 for each of the student's 2",
        ),
        ({"settings": {"distillation.value_weight": 2}}, "value_weight is 2.0, but objective distilbert does not use"),
        ({"settings": {"training.mode": "clm"}}, "distillation.teacher is for masked language modelling"),
        ({"settings": {"model.norm_bias": True}}, "except for its sizes; remove model.norm_bias"),
        ({"settings": {"model.family": "modernbert"}}, "as its teacher .*; remove model.family"),
        ({"settings": {"data.max_length": 64}}, "data.max_length is 64, .* takes 32 tokens"),
        ({"settings": {"training.parallel": "fsdp"}}, "use ddp"),
        ({"settings": {"model.num_hidden_layers": 1}}, "a setting says 1 where --layers .* says 2"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    options: dict[str, Any], message: str, teacher: Path, text: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        distill(teacher, text, tmp_path / "run", **options)
    assert not (tmp_path / "run" / "model").exists()


def test_another_vocabulary_is_refused(teacher: Path, text: Path, tmp_path: Path) -> None:
    shutil.copytree(teacher / "model", tmp_path / "other")
    file = tmp_path / "other" / "tokenizer.json"
    file.write_text(file.read_text().replace('"house"', '"mouse"'))
    with pytest.raises(InputError, match=r"'house' is token .* of the tokenizer|use the model's tokenizer"):
        distill(teacher, text, tmp_path / "run", settings={"tokenizer.path": str(tmp_path / "other")})


def test_a_causal_model_teaches_nothing(teacher: Path, text: Path, tmp_path: Path) -> None:
    values = {"model": {"from": str(teacher)}, "data": {"train": str(text), "max_length": 32}}
    training = {"mode": "clm", "max_steps": 1, "precision": "fp32"}
    causal = pretrain(
        build_config({**values, "run": {"name": "causal", "out": str(tmp_path)}, "training": training}), console=QUIET
    )
    with pytest.raises(InputError, match=r"trained with training.mode=clm"):
        distill(causal.folder.path, text, tmp_path / "run")
