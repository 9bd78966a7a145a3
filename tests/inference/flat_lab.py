"""A small pipeline of each kind around each family, and what its answers are made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from maskwright.inference.pipeline import pipeline
from maskwright.models.encoder import FAMILIES
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.tasks.heads import build_sequence_head, build_span_head, build_token_head
from maskwright.tasks.model import TaskModel
from maskwright.tasks.ner.token_classification import TokenClassification
from maskwright.tasks.qa.question_answering import QuestionAnswering
from maskwright.tasks.sequence.classification import Classification
from maskwright.text.tokenizer.tokenizer import Tokenizer

SHAPE = {"vocab_size": 160, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
KINDS = ("embed", "fill-mask", "classify", "ner", "qa")


def build(family: str = "bert", **settings: Any) -> Any:
    torch.manual_seed(0)
    return FAMILIES[family].from_variant("tiny", **{**SHAPE, "initializer_range": 0.1, **settings}).eval()


def build_pipeline(kind: str, encoder: Any, tokenizer: Tokenizer, **options: Any) -> Any:
    """The same head every time."""
    torch.manual_seed(1)
    model: Any = encoder
    if kind == "fill-mask":
        model = MaskedLanguageModel(encoder, encoder.vocab_size, tokenizer=tokenizer).eval()
    elif kind == "classify":
        model = TaskModel(encoder, build_sequence_head(encoder, 3, {}), Classification(["a", "b", "c"])).eval()
    elif kind == "ner":
        model = TaskModel(encoder, build_token_head(encoder, 3, {}), TokenClassification(["B-X", "I-X", "B-Y"])).eval()
    elif kind == "qa":
        model = TaskModel(encoder, build_span_head(encoder, 2, {}), QuestionAnswering()).eval()
    return pipeline(kind, model, tokenizer, **options)


def ask(kind: str, sentences: list[str]) -> list[Any]:
    if kind == "fill-mask":
        return [f"{sentence} [MASK]" for sentence in sentences] + ["[MASK] and [MASK]"]
    return [("the cat", sentence) for sentence in sentences] if kind == "qa" else sentences


def list_numbers(answer: Any) -> Iterator[float]:
    if isinstance(answer, dict):
        yield from (number for value in answer.values() for number in list_numbers(value))
    elif isinstance(answer, list):
        yield from (number for value in answer for number in list_numbers(value))
    elif isinstance(answer, np.ndarray):
        yield from answer.ravel().tolist()
    elif not isinstance(answer, str):
        yield float(answer)
