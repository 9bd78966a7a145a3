"""Encoders as ONNX for embeddings: named outputs, and the vectors of our own pipeline."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from maskwright.errors import InputError
from maskwright.inference.pipeline import pipeline
from maskwright.models.bert import BERT
from maskwright.models.files.model_folder import write_small_files
from maskwright.models.files.sentence_modules import describe_pooling
from maskwright.objectives.masked_lm import CausalLanguageModel, MaskedLanguageModel
from maskwright.runs.export import export_model
from maskwright.runs.export_options import ExportOptions
from maskwright.tasks.heads import build_embedding_head
from maskwright.tasks.model import TaskModel
from maskwright.tasks.similarity.text_similarity import ContrastiveSimilarity
from maskwright.text.tokenizer.tokenizer import Tokenizer, load_tokenizer
from tiny_bert import build_tiny_bert
from tolerances import assert_rounded, count_terms

onnxruntime = pytest.importorskip("onnxruntime")
NUM_TERMS = count_terms(num_layers=2, width=32, length=40)
TEXTS = ["the cat sees a long road", "one", "every student likes the quiet river and the green house"]
Command = Callable[..., Any]


def build_encoder(tokenizer: Tokenizer) -> BERT:
    shape = {"num_hidden_layers": 1, "max_position_embeddings": 40, "initializer_range": 0.3}
    return build_tiny_bert(tokenizer, **shape).eval()


def save_sentences(tokenizer: Tokenizer, folder: Path, pooling: Any = "mean", normalizes: bool = False) -> Path:
    """A folder of sentence-transformers."""
    encoder = build_encoder(tokenizer)
    encoder.save_pretrained(folder)
    tokenizer.save(folder)
    write_small_files(folder, describe_pooling(encoder.hidden_size, pooling, 24, normalizes))
    return folder


def save_similarity(tokenizer: Tokenizer, folder: Path) -> Path:
    encoder = build_encoder(tokenizer)
    task = ContrastiveSimilarity("cls", 0.05, max_length=24)
    TaskModel(encoder, build_embedding_head(encoder, 1, task.describe()), task).save_pretrained(folder, tokenizer)
    return folder


def save_masks(tokenizer: Tokenizer, folder: Path, kind: type[MaskedLanguageModel] = MaskedLanguageModel) -> Path:
    kind(build_encoder(tokenizer), tokenizer=tokenizer).save_pretrained(folder, tokenizer)
    return folder


def run(folder: Path, texts: list[str], file: str = "model.onnx") -> tuple[list[str], list[np.ndarray]]:
    """Names and outputs for each text alone."""
    session = onnxruntime.InferenceSession(str(folder / file))
    tokenizer = load_tokenizer(folder)
    names = [output.name for output in session.get_outputs()]
    asked = {value.name for value in session.get_inputs()}
    rows = [
        session.run(
            names, {key: value for key, value in tokenizer([text], return_tensors="np").items() if key in asked}
        )
        for text in texts
    ]
    return names, [np.concatenate([row[place] for row in rows]) for place in range(1, len(names))]


@pytest.mark.parametrize(
    "save",
    [
        pytest.param(
            lambda tokenizer, folder: save_sentences(tokenizer, folder, normalizes=True), id="normalized mean"
        ),
        pytest.param(save_similarity, id="similarity", marks=pytest.mark.slow),
    ],
)
def test_a_model_for_sentences_gives_the_vectors_of_our_pipeline(
    save: Callable[[Tokenizer, Path], Path], tokenizer: Tokenizer, corpus_file: Path, tmp_path: Path, command: Command
) -> None:
    source = save(tokenizer, tmp_path / "source")
    out = tmp_path / "out"
    result = command("export", source, "--to", "onnx", "--int8", "--out", out, "--text", corpus_file)
    assert (result.code, result.err) == (0, "")
    names, (vectors,) = run(out, TEXTS)
    assert names == ["last_hidden_state", "sentence_embedding"]
    expected = np.stack(pipeline("embed", source, device="cpu")(TEXTS))
    assert_rounded(vectors, expected, NUM_TERMS)
    _, (small,) = run(out, TEXTS, "model_int8.onnx")
    cosines = (small * expected).sum(-1) / np.linalg.norm(small, axis=-1) / np.linalg.norm(expected, axis=-1)
    assert cosines.min() > 0.95
    figures = json.loads((out / "maskwright_export.json").read_text())["figures"]
    assert figures["versions"]["onnx fp32"]["smallest_cosine"] == pytest.approx(1.0, abs=1e-5)
    assert json.loads((out / "tokenizer_config.json").read_text())["model_max_length"] == 24
    assert json.loads((out / "modules.json").read_text()) == json.loads((source / "modules.json").read_text())
    assert "BertModel" in (out / "config.json").read_text()
    card = (out / "README.md").read_text()
    assert "pipeline_tag: feature-extraction" in card
    assert "`last_hidden_state` and `sentence_embedding`" in card
    assert "| onnx int8 |" in card


@dataclass(frozen=True)
class Exported:
    source: Path
    folder: Path
    said: list[str]


@pytest.fixture(scope="module")
def exported_masks(tokenizer: Tokenizer, corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Tracing takes seconds; the same encoder as a folder of sentence-transformers has the same graph."""
    folder, said = tmp_path_factory.mktemp("masks"), []
    source = save_masks(tokenizer, folder / "source")
    options = ExportOptions("onnx", folder / "out", purpose="embed", texts=[str(corpus_file)])
    return Exported(source, export_model(str(source), options, said.append), said)


@pytest.mark.slow  # another model of the same graph
def test_a_masked_language_model_gives_vectors_if_it_is_asked_to(exported_masks: Exported) -> None:
    names, (vectors,) = run(exported_masks.folder, TEXTS)
    assert names == ["last_hidden_state", "sentence_embedding"]
    assert_rounded(vectors, np.stack(pipeline("embed", exported_masks.source, device="cpu")(TEXTS)), NUM_TERMS)
    assert any("cosines are between the vectors of 8 texts" in line for line in exported_masks.said)


@pytest.mark.slow  # graphs of tasks are compared in the same way: test_task_export.py
def test_vectors_that_are_not_the_pipelines_are_refused(
    exported_masks: Exported, tokenizer: Tokenizer, corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, graph = save_sentences(tokenizer, tmp_path / "source"), exported_masks.folder / "model.onnx"
    monkeypatch.setattr("maskwright.export.onnx.write_graph", lambda model, path: shutil.copy(graph, path))
    monkeypatch.setattr("maskwright.runs.sentence_export._embed_ids", lambda kind, rows: np.ones((len(rows), 32)))
    options = ExportOptions("onnx", tmp_path / "out", texts=[str(corpus_file)])
    with pytest.raises(RuntimeError, match="differ from those of maskwright's pipeline"):
        export_model(str(source), options, lambda line: None)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("to", "purpose", "message"),
    [("hf", "embed", "--for is for --to onnx"), ("onnx", "embedding", "no export --for 'embedding'.*embed")],
)
def test_a_purpose_that_makes_no_sense_is_refused(to: str, purpose: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ExportOptions(to, purpose=purpose)


def test_a_model_that_continues_text_has_no_graph_for_embeddings(tokenizer: Tokenizer, tmp_path: Path) -> None:
    source = save_masks(tokenizer, tmp_path / "source", CausalLanguageModel)
    options = ExportOptions("onnx", tmp_path / "out", purpose="embed")
    with pytest.raises(InputError, match="continues text"):
        export_model(str(source), options, lambda line: None)
