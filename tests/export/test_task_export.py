"""Fine-tuned models as Hugging Face folders and as ONNX: the same answers, and what cannot be exported is refused."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from maskwright.errors import InputError, RunError
from maskwright.export.onnx_graph import answer_with_onnx, answer_with_torch
from maskwright.export.task_onnx import export_task_onnx, find_same
from maskwright.models.bert import BERT
from maskwright.tasks.heads import build_sequence_head
from maskwright.tasks.model import TaskModel
from maskwright.tasks.sequence.classification import Classification
from maskwright.tasks.sequence.multi_label import MultiLabel
from maskwright.tasks.sequence.regression import Regression
from maskwright.tasks.task import Task
from maskwright.text.tokenizer.tokenizer import Tokenizer
from tolerances import assert_rounded, count_terms, rounding

NUM_TERMS = count_terms(num_layers=2, width=32, length=40)
MAGNITUDE = 4.0

Command = Callable[..., Any]
CLASSES = ["good", "bad", "neither"]
TASKS: dict[str, Callable[[], Task]] = {
    "classification": lambda: Classification(CLASSES),
    "multi-label": lambda: MultiLabel(CLASSES),
    "regression": Regression,
}
SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 40}


def build_task_model(tokenizer: Tokenizer, task: str = "classification", **options: Any) -> TaskModel:
    torch.manual_seed(0)
    shape: dict[str, Any] = {**SHAPE, "vocab_size": tokenizer.vocab_size, "initializer_range": 0.3, **options}
    encoder = BERT.from_variant("tiny", **shape)
    asked = TASKS[task]()
    head = build_sequence_head(encoder, asked.num_outputs, {})
    return TaskModel(encoder, head, asked).eval()


@pytest.fixture
def save_model(tokenizer: Tokenizer, tmp_path: Path) -> Callable[..., Path]:
    def save(task: str = "classification", **options: Any) -> Path:
        build_task_model(tokenizer, task, **options).save_pretrained(tmp_path / "model", tokenizer)
        return tmp_path / "model"

    return save


@pytest.mark.parametrize("task", list(TASKS))
def test_transformers_answers_the_exported_folder_as_we_do(
    command: Command, save_model: Callable[..., Path], corpus_file: Path, tmp_path: Path, task: str
) -> None:
    transformers = pytest.importorskip("transformers")
    folder = save_model(task)
    result = command("export", folder, "--out", tmp_path / "out", "--text", corpus_file, "--license", "mit")
    assert (result.code, result.err) == (0, "")
    assert "tensors are bit-equal" in result.out
    theirs = transformers.pipeline("text-classification", str(tmp_path / "out"), device="cpu")
    first, second = "the cat sees", "a long road."
    expected = theirs({"text": first, "text_pair": second})
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(json.dumps({"text": first, "other": second}) + "\n", encoding="utf-8")
    ours = json.loads(command("predict", "classify", folder, pairs, "--column", "text", "--second-column", "other").out)
    assert ours["label"] == expected["label"]
    assert ours["score"] == pytest.approx(expected["score"], abs=rounding(NUM_TERMS, MAGNITUDE))


def test_the_card_names_the_labels_and_says_what_is_not_known(
    command: Command, save_model: Callable[..., Path], corpus_file: Path, tmp_path: Path
) -> None:
    command("export", save_model(), "--out", tmp_path / "out", "--text", corpus_file, "--language", "en")
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    front = yaml.safe_load(card.split("---\n")[1])
    assert (front["language"], front["pipeline_tag"]) == ("en", "text-classification")
    assert "3 classes (single label classification): good, bad, neither." in card
    assert "was not at hand" in card
    assert "No figures on held-out examples are known" in card


def test_the_card_of_a_run_has_its_scores_and_settings(
    command: Command, tokenizer: Tokenizer, corpus_file: Path, tmp_path: Path
) -> None:
    encoder = build_task_model(tokenizer).encoder
    encoder.save_pretrained(tmp_path / "encoder")
    tokenizer.save(tmp_path / "encoder")
    lines = [{"text": f"the cat {verb} a road", "label": label} for verb, label in (("sees", "a"), ("likes", "b"))] * 4
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    files = ["--train", tmp_path / "train.jsonl", "--validation", tmp_path / "train.jsonl", "--epochs", 1]
    words = ["classification", "training.device=cpu", "--model", tmp_path / "encoder", *files]
    assert command("finetune", *words, "--out", tmp_path / "run").code == 0
    result = command("export", tmp_path / "run", "--text", corpus_file)
    assert (result.code, result.err) == (0, "")
    folder = tmp_path / "run-hf"
    card = (folder / "README.md").read_text(encoding="utf-8")
    final = json.loads((tmp_path / "run" / "final.json").read_text(encoding="utf-8"))
    assert f"| accuracy | {final['accuracy']:,.4f} |" in card
    assert "| training examples | 8 |" in card
    assert {"training_config.yaml", "task.yaml", "maskwright_export.json"} <= {path.name for path in folder.iterdir()}


def test_what_the_formats_cannot_hold_is_refused_and_leaves_nothing(
    command: Command, save_model: Callable[..., Path], corpus_file: Path, tmp_path: Path
) -> None:
    folder = save_model(normalization_type="rms_norm")
    before = sorted(tmp_path.iterdir())
    words = ("export", folder, "--out", tmp_path / "out", "--text", corpus_file)
    command(*words).assert_refused("cannot hold this model", "rms_norm")
    command(*words, "--to", "sentence-transformers").assert_refused("was not fine-tuned", "--to hf or --to onnx")
    assert sorted(tmp_path.iterdir()) == before


@dataclass(frozen=True)
class Exported:
    model: TaskModel
    folder: Path
    figures: dict[str, Any]
    said: list[str]


@pytest.fixture(scope="module")
def exported(tokenizer: Tokenizer, sentences: list[str], tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Tracing takes seconds, so there is one graph for all tests."""
    pytest.importorskip("onnxruntime")
    model, folder, said = build_task_model(tokenizer, num_hidden_layers=1), tmp_path_factory.mktemp("onnx") / "out", []
    figures = export_task_onnx(model, tokenizer, folder, int8=True, texts=sentences, say=said.append)
    return Exported(model, folder, figures, said)


def test_onnx_answers_as_torch_does_whatever_the_padding(exported: Exported, tokenizer: Tokenizer) -> None:
    ids = np.full((2, 12), tokenizer.pad_token_id)
    for row, text in zip(ids, ("the cat sees a road.", "one"), strict=True):
        encoded = tokenizer.encode(text)
        row[: len(encoded)] = encoded
    inputs = {"input_ids": ids, "attention_mask": (ids != tokenizer.pad_token_id).astype(np.int64)}
    inputs["token_type_ids"] = np.zeros_like(ids)
    found = answer_with_onnx(exported.folder / "model.onnx")(inputs)
    assert found.shape == (2, len(CLASSES))
    assert_rounded(found, answer_with_torch(exported.model)(inputs), NUM_TERMS, MAGNITUDE)


def test_every_version_is_measured_against_torch(exported: Exported, sentences: list[str]) -> None:
    versions = exported.figures["versions"]
    assert list(versions) == ["torch fp32", "onnx fp32", "onnx int8"]
    assert exported.figures["num_texts"] == len(sentences)
    assert versions["onnx fp32"]["same_answers"] == 1.0
    assert 0.5 < versions["onnx int8"]["same_answers"] <= 1.0
    rounded, quantized = (versions[name]["mean_difference"] for name in ("onnx fp32", "onnx int8"))
    assert rounded <= rounding(NUM_TERMS, MAGNITUDE) < quantized < 1.0
    assert versions["onnx int8"]["size_bytes"] < versions["onnx fp32"]["size_bytes"]
    assert any("same answers" in line for line in exported.said)


def test_the_folder_of_a_graph_names_the_labels(exported: Exported) -> None:
    config = json.loads((exported.folder / "config.json").read_text(encoding="utf-8"))
    assert list(config["id2label"].values()) == CLASSES
    assert (exported.folder / "tokenizer.json").is_file()


def test_a_graph_that_answers_otherwise_is_not_kept(
    exported: Exported, tokenizer: Tokenizer, sentences: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = exported.folder / "model.onnx"
    monkeypatch.setattr("maskwright.export.onnx.write_graph", lambda model, path: shutil.copy(graph, path))
    other = copy.deepcopy(exported.model)
    with torch.no_grad():
        other.task_head.output.bias += 1.0
    with pytest.raises(RunError, match=r"differ from torch's by (1|0\.99|1\.0)"):
        export_task_onnx(other, tokenizer, tmp_path / "out", int8=False, texts=sentences, say=print)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("found", "wanted", "decides", "same"),
    [
        ([[1, 2]], [[0, 9]], "best class", [True]),
        ([[1, 2]], [[3, 2]], "best class", [False]),
        ([[1, -2]], [[3, 2]], "every class", [[True, False]]),
        ([[1.0]], [[1.005]], "measure", [[True]]),
        ([[1.0]], [[1.1]], "measure", [[False]]),
        ([[[1, 2], [0, 1], [9, 0]]], [[[1, 2], [2, 1], [0, 9]]], "ends", [[False, True]]),
        ([[[1, 2], [0, 1], [9, 0]]], [[[2, 1], [0, 3], [0, 9]]], "best class", [False, True]),
    ],
)
def test_answers_are_the_same_where_they_say_the_same(
    found: list[Any], wanted: list[Any], decides: Any, same: list[Any]
) -> None:
    """The third token is padding and says nothing."""
    inputs = {"attention_mask": np.array([[1, 1, 0]])}
    assert find_same(np.array(found), np.array(wanted), inputs, decides).tolist() == same


@pytest.mark.parametrize("architecture", ["BertForTokenClassification", "BertForQuestionAnswering"])
def test_models_of_tokens_and_spans_are_read_by_transformers_too(
    command: Command, tokenizer: Tokenizer, corpus_file: Path, tmp_path: Path, architecture: str
) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(vocab_size=tokenizer.vocab_size, intermediate_size=64, **SHAPE)
    getattr(transformers, architecture)(config).save_pretrained(tmp_path / "model")
    tokenizer.save(tmp_path / "model")
    result = command("export", tmp_path / "model", "--out", tmp_path / "out", "--text", corpus_file)
    assert (result.code, result.err.count("error")) == (0, 0)
    assert "logits of 8 texts" in result.out
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "pipeline_tag: " + ("token-classification" if "Token" in architecture else "question-answering") in card


def test_there_must_be_text_to_compare_on(tokenizer: Tokenizer, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    with pytest.raises(InputError, match="no text to compare"):
        export_task_onnx(build_task_model(tokenizer), tokenizer, tmp_path, int8=False, texts=[" "], say=print)
