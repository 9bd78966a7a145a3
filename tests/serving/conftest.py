"""Tiny models of every task, with weights large enough for uneven answers, and a server with all of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from running import Running, running
from torch import nn

import maskwright as mw
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.serving.search import plan_indexes
from maskwright.tasks.heads import build_sequence_head, build_span_head, build_token_head
from maskwright.tasks.model import TaskModel
from maskwright.tasks.ner.token_classification import TokenClassification
from maskwright.tasks.qa.question_answering import QuestionAnswering
from maskwright.tasks.retrieval.colbert import LateRetrieval, build_late_head
from maskwright.tasks.retrieval.settings import RetrievalSettings
from maskwright.tasks.retrieval.splade import SpladeRetrieval, build_splade_head
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

RETRIEVERS = {
    "sparse": (
        build_splade_head,
        SpladeRetrieval,
        RetrievalSettings(kind="splade", query_prompt="my old ", query_flops=1.0, document_flops=1.0),
    ),
    "late": (
        build_late_head,
        LateRetrieval,
        RetrievalSettings(kind="colbert", document_prompt="the green ", width=16, query_length=10),
    ),
}
HOSTILE = "<img src=x onerror=\"document.title='hacked'\">"


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


@pytest.fixture(scope="session")
def retriever_folders(
    tokenizer: Tokenizer, model_folders: dict[str, Path], sentences: list[str], tmp_path_factory: Any
) -> dict[str, Path]:
    """Models by name, and an index by each of them as `NAME-index`; the words alone are `words`."""
    pytest.importorskip("scipy")
    pytest.importorskip("bm25s")
    parent: Path = tmp_path_factory.mktemp("retrievers")
    for name, (build_head, make_task, settings) in RETRIEVERS.items():
        encoder = build_tiny_bert(tokenizer, max_position_embeddings=64, initializer_range=0.3)
        task = make_task(settings)
        task.read_tokenizer(tokenizer)
        head = build_head(encoder, task.describe())
        for weight in head.parameters():
            if weight.ndim > 1:
                torch.manual_seed(1)
                nn.init.normal_(weight, std=0.5)
        TaskModel(encoder, head, task).save_pretrained(parent / name, tokenizer)
    corpus = parent / "corpus.jsonl"
    texts = [*sentences, f"a cello {HOSTILE} {' '.join(sentences[:9])}"]
    corpus.write_text("".join(json.dumps({"_id": f"d{n}", "text": text}) + "\n" for n, text in enumerate(texts)))
    models = {"dense": model_folders["language"], "sparse": parent / "sparse", "late": parent / "late"}
    for name, model in [*models.items(), ("words", "bm25")]:
        mw.index(model, corpus, out=parent / f"{name}-index", store="int8" if name == "dense" else "float")
    return {path.name: path for path in parent.iterdir() if path.is_dir()}


@pytest.fixture(scope="session")
def search_server(retriever_folders: dict[str, Path], model_folders: dict[str, Path]) -> Iterator[Running]:
    names = ("dense-index", "sparse-index", "late-index", "words-index")
    indexes, sources = plan_indexes([retriever_folders[name] for name in names], [model_folders["relevance"]])
    with running(sources, indexes=indexes) as one:
        yield one
