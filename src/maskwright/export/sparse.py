"""Export a sparse retriever to a folder that sentence-transformers' SparseEncoder loads, with its model card."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from maskwright.export.card import CardOptions, escape, show_code
from maskwright.export.comparison import (
    OWN_READER,
    Comparison,
    Sample,
    check_equal,
    check_tokenizer,
    choose_sample,
    compare,
    find_reader,
)
from maskwright.export.huggingface import NEEDS_THEIRS, complete_settings, find_encoder_obstacles, refuse
from maskwright.export.task_card import TaskOrigin, describe_limits, describe_task
from maskwright.models.any_encoder import name_encoder
from maskwright.models.transformers_model import quiet_transformers
from maskwright.tasks.model import TaskModel
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.training.compute.device import evaluation_mode


def export_sparse(
    model: TaskModel, tokenizer: Tokenizer, folder: Path, *, texts: Sequence[str], say: Callable[[str], None]
) -> Comparison:
    """Write the folder, read it back and compare weights of the texts' tokens."""
    refuse("a sentence-transformers folder", find_encoder_obstacles(model.encoder))
    sample = choose_sample(texts, tokenizer, model.encoder)
    model.save_pretrained(folder, tokenizer)
    complete_settings(folder, model.encoder, tokenizer)
    read_back = TaskModel.from_pretrained(folder)
    say(f"{OWN_READER}: {check_equal(model, read_back, folder)} tensors are bit-equal")
    reader = find_reader("sentence_transformers")
    if reader is None:
        reader, found = OWN_READER, _weigh(read_back, sample)
        say(f"sentence-transformers is not installed, so the comparison is with {OWN_READER} only; {NEEDS_THEIRS}")
    else:
        found = _weigh_by_theirs(folder, sample)
    comparison = compare(reader, list(_weigh(model, sample)), list(found), sample)
    say(comparison.describe("weights of tokens"))
    return comparison


@torch.no_grad()
def _weigh(model: TaskModel, sample: Sample) -> Tensor:
    """(texts, V)"""
    device = next(model.parameters()).device
    with evaluation_mode(model):
        return model(**{name: tensor.to(device) for name, tensor in sample.pad().items()}).logits.cpu()


def _weigh_by_theirs(folder: Path, sample: Sample) -> Tensor:
    with quiet_transformers():
        check_tokenizer(sample, folder)
        theirs: Any = import_module("sentence_transformers").SparseEncoder(str(folder), device="cpu")
        theirs.max_seq_length = sample.max_length
        weights: Tensor = theirs.encode(sample.texts, convert_to_sparse_tensor=False, show_progress_bar=False)
    return weights.cpu()


def build_sparse_card(
    name: str, model: TaskModel, origin: TaskOrigin, comparison: Comparison, card: CardOptions
) -> str:
    """`name` is the folder's."""
    family, facts = name_encoder(model.encoder), describe_task(model, origin)
    values: dict[str, Any] = {key: value for key, value in asdict(card).items() if value is not None}
    values |= {"library_name": "sentence-transformers", "pipeline_tag": "feature-extraction"}
    values["tags"] = ["maskwright", family.lower(), "sparse-encoder", "splade"]
    num_parameters = sum(param.numel() for param in model.parameters())
    usage = show_code(
        "from sentence_transformers import SparseEncoder\n\n"
        f"model = SparseEncoder({name!r})\n"
        'queries = model.encode_query(["when did the museum open?"])\n'
        'documents = model.encode_document(["The museum opened in 1901."])\n'
        "print(model.similarity(queries, documents))"
    )
    sections = [
        f"---\n{yaml.safe_dump(values, sort_keys=False)}---",
        f"# {escape(name)}",
        f"A {family} encoder of {num_parameters:,} parameters that gives a text weights of the {model.vocab_size:,}"
        " tokens of its vocabulary (SPLADE), few of which are above 0, fine-tuned so that their product says how well a"
        " document answers a query. Made with Maskwright, for sentence-transformers.",
        f"## How to use\n\nFrom the folder that holds this one:\n\n{usage}",
        f"## Fine-tuning\n\n{facts['Fine-tuning']}",
        f"## Figures\n\n{facts['Figures']}\n\nAt export, {comparison.describe('weights of tokens')}.",
        f"## Limits\n\n{describe_limits(model)}",
    ]
    return "\n\n".join(sections) + "\n"
