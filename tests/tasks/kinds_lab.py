"""Inputs for every kind of task, and for every native family, from the files of the other labs."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch
from qa_lab import build_questions, write_squad
from similarity_lab import build_pairs, build_scored_pairs
from task_lab import Lab, build_records, write_conll, write_lines

from maskwright.models.encoder import FAMILIES
from maskwright.runs.finetune.inputs import TaskInputs, load_task_inputs

KINDS = ("classification", "multi-label", "pairs", "regression", "ner", "qa", "contrastive", "cosine")
NUM_EXAMPLES = 64


def load_kind(lab: Lab, kind: str, dropout: float | None = None, **values: Any) -> TaskInputs:
    """Examples of a kind of task, in batches of eight, for the tiny BERT of the lab."""
    config = {"classification": {}, "pairs": {"second_column": "other"}, "regression": {"label_column": "score"}}
    config["multi-label"] = {"label_column": "labels"}
    given: dict[str, Any] = dict(config.get(kind, {}))
    files = {name: lab.folder / f"{kind}-{name}" for name in ("train", "validation")}
    for seed, (name, file) in enumerate(files.items()):
        if kind == "ner":
            write_conll(file, NUM_EXAMPLES, seed)
            given |= {name: str(file), "text_column": None}
        elif kind == "qa":
            file = write_squad(file.with_suffix(".json"), build_questions(NUM_EXAMPLES, seed, unanswered=0.2))
            given |= {name: str(file), "text_column": None}
        elif kind in ("contrastive", "cosine"):
            build = build_pairs if kind == "contrastive" else build_scored_pairs
            file = write_lines(file.with_suffix(".jsonl"), build(NUM_EXAMPLES, seed))
            given |= {name: str(file), "text_column": None, "loss": kind}
        else:
            write_lines(lab.folder / f"{name}.jsonl", build_records(NUM_EXAMPLES, seed))
    task = "similarity" if kind in ("contrastive", "cosine") else kind
    inputs = load_task_inputs(lab.config(task, **given, **values), lambda text: None)
    return inputs if dropout is None else with_family(inputs, "bert", dropout)


def with_family(inputs: TaskInputs, model_type: str, dropout: float) -> TaskInputs:
    """The same examples for a new encoder of another family."""
    torch.manual_seed(0)
    encoder_class = FAMILIES[model_type]
    known = {field.name for field in fields(encoder_class.config_class)}
    shape: dict[str, Any] = {
        "vocab_size": inputs.tokenizer.vocab_size,
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 2,
        "max_position_embeddings": 40,
        "initializer_range": 0.1,
    }
    rates = {name: dropout for name in known if name.endswith("_dropout_prob")}
    encoder = encoder_class.from_variant("tiny", **shape, **rates)
    return replace(inputs, encoder=encoder, encoder_config={}, weights={})


def set_dropout(model: torch.nn.Module, rate: float) -> None:
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = rate
        elif hasattr(part, "dropout") and isinstance(part.dropout, float):
            part.dropout = rate
