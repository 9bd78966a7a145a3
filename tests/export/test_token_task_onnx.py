"""Graphs of models that answer for every token: onnxruntime's logits are ours, whatever the lengths in a batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from maskwright.batch import from_padded
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
LENGTHS = (1, 2, 7, 23, MAX_LENGTH)


def build_token_model(task_name: str, tokenizer: Tokenizer) -> TaskModel:
    encoder = build_tiny_bert(tokenizer, num_hidden_layers=1, max_position_embeddings=MAX_LENGTH, initializer_range=0.3)
    task = TokenClassification(["O", "B-PER", "I-PER"]) if task_name == "ner" else QuestionAnswering()
    build_head = build_token_head if task_name == "ner" else build_span_head
    return TaskModel(encoder, build_head(encoder, task.num_outputs, {}), task).eval()


@pytest.mark.parametrize("task_name", ["ner", "qa"])
def test_logits_of_tokens_are_those_of_each_text_alone(
    tokenizer: Tokenizer, sentences: list[str], tmp_path: Path, task_name: str
) -> None:
    """Ours are computed without padding, by the way that batches of a run take."""
    pytest.importorskip("onnxruntime")
    model = build_token_model(task_name, tokenizer)
    figures = export_task_onnx(
        model, tokenizer, tmp_path / "out", int8=False, texts=sentences[:8], say=lambda text: None
    )
    assert figures["longest_checked"] == MAX_LENGTH
    assert figures["versions"]["onnx fp32"]["same_answers"] == 1.0

    is_real = np.arange(MAX_LENGTH) < np.array(LENGTHS)[:, None]
    ids = np.where(is_real, np.random.default_rng(0).integers(5, tokenizer.vocab_size, is_real.shape), 0)
    types = ((np.arange(MAX_LENGTH) > 3) & is_real).astype(np.int64)
    inputs = {"input_ids": ids, "attention_mask": is_real.astype(np.int64), "token_type_ids": types}
    found = answer_with_onnx(tmp_path / "out" / "model.onnx")(inputs)
    assert found.shape == (len(LENGTHS), MAX_LENGTH, model.task.num_outputs)
    for number, length in enumerate(LENGTHS):
        tokens, segments = (torch.from_numpy(one[number : number + 1, :length]) for one in (ids, types))
        with torch.no_grad():
            ours = model.predict(from_padded(tokens, None, segments))[0].numpy()
        assert_rounded(found[number, :length], ours, count_terms(num_layers=2, width=32, length=MAX_LENGTH))
