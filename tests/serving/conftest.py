"""Tiny models of every task, with weights large enough for uneven answers, and a server with all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from running import Running, running
from torch import nn

from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.tasks.heads import build_sequence_head, build_span_head, build_token_head
from maskwright.tasks.model import TaskModel
from maskwright.tasks.ner.token_classification import TokenClassification
from maskwright.tasks.qa.question_answering import QuestionAnswering
from maskwright.tasks.sequence.classification import Classification
from maskwright.tasks.sequence.regression import Regression
from maskwright.text.tokenizer.tokenizer import Tokenizer
from tiny_bert import build_tiny_bert

MAX_LENGTH = 64
TASKS = {
    "entities": (build_token_head, TokenClassification(["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]), 5),
    "questions": (build_span_head, QuestionAnswering(), 2),
    "inference": (build_sequence_head, Classification(["contradiction", "neutral", "entailment"]), 3),
    "relevance": (build_sequence_head, Regression(), 1),
}


@pytest.fixture(scope="session")
def model_folders(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By what each is called as a model: a language model, and one of each task."""
    parent = tmp_path_factory.mktemp("served")
    shape = {"max_position_embeddings": MAX_LENGTH, "initializer_range": 0.3}
    encoder = build_tiny_bert(tokenizer, **shape)
    language_model = MaskedLanguageModel(
        encoder,
        tokenizer.vocab_size,
        mask_token_id=tokenizer.mask_token_id,
        special_token_ids=tokenizer.all_special_ids,
        layer_norm_eps=encoder.norm_eps,
    )
    language_model.save_pretrained(parent / "language", tokenizer)
    for name, (build_head, task, num_outputs) in TASKS.items():
        tuned = build_tiny_bert(tokenizer, **shape)
        task_head = build_head(tuned, num_outputs, {})
        torch.manual_seed(1)
        for weight in task_head.parameters():
            if weight.ndim > 1:
                nn.init.normal_(weight, std=0.5)
        TaskModel(tuned, task_head, task).save_pretrained(parent / name, tokenizer)
    return {name: parent / name for name in ("language", *TASKS)}


@pytest.fixture(scope="session")
def server(model_folders: dict[str, Path]) -> Iterator[Running]:
    """With all models; tests that change it start one of their own."""
    with running(list(model_folders.values())) as one:
        yield one
