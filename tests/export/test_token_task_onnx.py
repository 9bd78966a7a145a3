"""Graphs of models that answer for every token: onnxruntime's logits are ours, whatever the lengths in a batch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from maskwright.batch import as_packed, from_padded
from maskwright.export.onnx_graph import answer_with_onnx
from maskwright.export.task_onnx import export_task_onnx
from maskwright.tasks.heads import build_span_head, build_token_head
from maskwright.tasks.model import TaskModel
from maskwright.tasks.ner.token_classification import TokenClassification
from maskwright.tasks.qa.question_answering import QuestionAnswering
from maskwright.text.tokenizer.tokenizer import Tokenizer
from tiny_bert import build_tiny_bert
from tolerances import assert_rounded, count_terms

MAX_LENGTH = 40
NUM_TERMS = count_terms(num_layers=2, width=32, length=MAX_LENGTH)
LENGTHS = (1, 2, 7, 23, MAX_LENGTH)


def build_token_model(task_name: str, tokenizer: Tokenizer) -> TaskModel:
    encoder = build_tiny_bert(tokenizer, num_hidden_layers=1, max_position_embeddings=MAX_LENGTH, initializer_range=0.3)
    task = TokenClassification(["O", "B-PER", "I-PER"]) if task_name == "ner" else QuestionAnswering()
    build_head = build_token_head if task_name == "ner" else build_span_head
    return TaskModel(encoder, build_head(encoder, task.num_outputs, {}), task).eval()


@dataclass(frozen=True)
class Exported:
    model: TaskModel
    graph: Path
    figures: dict[str, Any]


@pytest.fixture(scope="module")
def export_once(
    tokenizer: Tokenizer, sentences: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Exported]:
    """Tracing takes seconds."""
    pytest.importorskip("onnxruntime")

    def export(task_name: str) -> Exported:
        model, out = build_token_model(task_name, tokenizer), tmp_path_factory.mktemp(task_name) / "out"
        texts = sentences[:8]
        figures = export_task_onnx(model, tokenizer, out, int8=False, texts=texts, say=lambda text: None)
        return Exported(model, out / "model.onnx", figures)

    return functools.cache(export)


@pytest.mark.slow  # tracing takes seconds; test_task_export.py has the graph of classes
def test_a_question_answering_graph_names_both_ends(
    export_once: Callable[[str], Exported], tokenizer: Tokenizer
) -> None:
    exported = export_once("qa")
    session = pytest.importorskip("onnxruntime").InferenceSession(str(exported.graph))
    assert [output.name for output in session.get_outputs()] == ["start_logits", "end_logits"]
    encoded = tokenizer(["the cat"], ["sees a road"], return_tensors="pt")
    start, end = session.run(None, {name: value.numpy() for name, value in encoded.items()})
    logits = exported.model.predict(as_packed(encoded, None, None)).detach().numpy()
    assert_rounded(np.stack([start, end], axis=-1), logits, NUM_TERMS)


@pytest.mark.slow
@pytest.mark.parametrize("task_name", ["qa", "ner"])
def test_logits_of_tokens_are_those_of_each_text_alone(
    export_once: Callable[[str], Exported], tokenizer: Tokenizer, task_name: str
) -> None:
    """Ours are computed without padding, by the way that batches of a run take."""
    exported = export_once(task_name)
    model, figures = exported.model, exported.figures
    assert figures["longest_checked"] == MAX_LENGTH
    assert figures["versions"]["onnx fp32"]["same_answers"] == 1.0

    is_real = np.arange(MAX_LENGTH) < np.array(LENGTHS)[:, None]
    ids = np.where(is_real, np.random.default_rng(0).integers(5, tokenizer.vocab_size, is_real.shape), 0)
    types = ((np.arange(MAX_LENGTH) > 3) & is_real).astype(np.int64)
    inputs = {"input_ids": ids, "attention_mask": is_real.astype(np.int64), "token_type_ids": types}
    found = answer_with_onnx(exported.graph)(inputs)
    assert found.shape == (len(LENGTHS), MAX_LENGTH, model.task.num_outputs)
    for number, length in enumerate(LENGTHS):
        tokens, segments = (torch.from_numpy(one[number : number + 1, :length]) for one in (ids, types))
        with torch.no_grad():
            ours = model.predict(from_padded(tokens, None, segments))[0].numpy()
        assert_rounded(found[number, :length], ours, NUM_TERMS)
