"""Export retrievers of other than one vector to folders of sentence-transformers, with their model cards.

Sparse ones for its SparseEncoder, those of late interaction for its MultiVectorEncoder. V vocabulary, C numbers of a
token's vector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
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
    split_rows,
)
from maskwright.export.huggingface import (
    NEEDS_THEIRS,
    complete_settings,
    find_encoder_obstacles,
    find_padding_obstacles,
    refuse,
)
from maskwright.export.task_card import TaskOrigin, describe_limits, describe_task
from maskwright.models.any_encoder import name_encoder
from maskwright.models.transformers_model import quiet_transformers
from maskwright.tasks.model import TaskModel
from maskwright.tasks.retrieval.colbert import LateRetrieval
from maskwright.tasks.retrieval.dense import DenseRetrieval
from maskwright.tasks.retrieval.splade import SpladeRetrieval
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.training.compute.device import evaluation_mode


@dataclass(frozen=True)
class _Format:
    reader: str
    """The class of sentence-transformers."""
    tag: str
    answers: str
    gives: str


_SPARSE = _Format(
    "SparseEncoder",
    "sparse-encoder",
    "weights of tokens",
    "weights of its vocabulary's tokens, few of them above 0",
)
_LATE = _Format(
    "MultiVectorEncoder", "multi-vector", "vectors of tokens", "a vector of each token, compared by their best matches"
)


def find_format(model: TaskModel) -> _Format:
    return _SPARSE if isinstance(model.task, SpladeRetrieval) else _LATE


def describe_texts(model: TaskModel) -> str:
    """What a program that has the graph alone must know: how texts are written, and how they are compared."""
    assert isinstance(model.task, DenseRetrieval)
    settings = model.task.settings
    lines = [f"- Before a {role} stands `{prompt}`." for role, prompt in settings.prompts.items()]
    if not isinstance(model.task, LateRetrieval):
        return "\n".join([*lines, "- The score of a document is the product of its weights with those of the query."])
    if settings.query_length:
        lines.append(
            f"- A query is cut to {settings.query_length} tokens and filled up to as many with mask tokens behind its"
            " end, which the model attends to."
        )
    lines.append("- Vectors of a document's punctuation are left out.")
    lines.append("- The score is the sum, over the query's vectors, of the largest product with one of the document.")
    return "\n".join(lines)


def export_retriever(
    model: TaskModel, tokenizer: Tokenizer, folder: Path, *, texts: Sequence[str], say: Callable[[str], None]
) -> Comparison:
    """Write the folder, read it back and compare what the texts become."""
    form = find_format(model)
    obstacles = find_encoder_obstacles(model.encoder) or find_padding_obstacles(model.encoder, tokenizer)
    refuse("a sentence-transformers folder", obstacles)
    sample = choose_sample(texts, tokenizer, model.encoder)
    model.save_pretrained(folder, tokenizer)
    complete_settings(folder, model.encoder, tokenizer)
    read_back = TaskModel.from_pretrained(folder)
    say(f"{OWN_READER}: {check_equal(model, read_back, folder)} tensors are bit-equal")
    reader = find_reader("sentence_transformers")
    if reader is None:
        reader, found = OWN_READER, _compute(read_back, sample)
        say(f"sentence-transformers is not installed, so the comparison is with {OWN_READER} only; {NEEDS_THEIRS}")
    else:
        found = _compute_theirs(form, folder, sample)
    comparison = compare(reader, _compute(model, sample), found, sample)
    say(comparison.describe(form.answers))
    return comparison


@torch.no_grad()
def _compute(model: TaskModel, sample: Sample) -> list[Tensor]:
    """(V,) weights of each text, or (tokens, C) vectors of its tokens that count in a document."""
    device = next(model.parameters()).device
    with evaluation_mode(model):
        logits = model(**{name: tensor.to(device) for name, tensor in sample.pad().items()}).logits
    if not isinstance(model.task, LateRetrieval):
        return list(logits.cpu())
    skipped = torch.tensor(model.task.settings.skipped_tokens)
    is_kept = [~torch.isin(torch.tensor(row), skipped) for row in sample.rows]
    return [vectors[kept] for vectors, kept in zip(split_rows(logits, sample), is_kept, strict=True)]


def _compute_theirs(form: _Format, folder: Path, sample: Sample) -> list[Tensor]:
    options = {"convert_to_sparse_tensor": False} if form is _SPARSE else {}
    with quiet_transformers():
        check_tokenizer(sample, folder)
        theirs: Any = getattr(import_module("sentence_transformers"), form.reader)(str(folder), device="cpu")
        theirs.max_seq_length = sample.max_length
        found: list[Tensor] = list(theirs.encode(sample.texts, show_progress_bar=False, **options))
    return [one.cpu() for one in found]


def build_retriever_card(
    name: str, model: TaskModel, origin: TaskOrigin, comparison: Comparison, card: CardOptions
) -> str:
    """`name` is the folder's."""
    form = find_format(model)
    family, facts = name_encoder(model.encoder), describe_task(model, origin)
    values: dict[str, Any] = {key: value for key, value in asdict(card).items() if value is not None}
    values |= {"library_name": "sentence-transformers", "pipeline_tag": "feature-extraction"}
    values["tags"] = ["maskwright", family.lower(), form.tag]
    num_parameters = sum(param.numel() for param in model.parameters())
    usage = show_code(
        f"from sentence_transformers import {form.reader}\n\n"
        f"model = {form.reader}({name!r})\n"
        'queries = model.encode_query(["when did the museum open?"])\n'
        'documents = model.encode_document(["The museum opened in 1901."])\n'
        "print(model.similarity(queries, documents))"
    )
    sections = [
        f"---\n{yaml.safe_dump(values, sort_keys=False)}---",
        f"# {escape(name)}",
        f"A {family} encoder of {num_parameters:,} parameters that gives a text {form.gives}, fine-tuned to find the"
        " documents that answer a query. Made with Maskwright, for sentence-transformers.",
        f"## How to use\n\nFrom the folder that holds this one:\n\n{usage}",
        f"## Fine-tuning\n\n{facts['Fine-tuning']}",
        f"## Figures\n\n{facts['Figures']}\n\nAt export, {comparison.describe(form.answers)}.",
        f"## Limits\n\n{describe_limits(model)}",
    ]
    return "\n\n".join(sections) + "\n"
