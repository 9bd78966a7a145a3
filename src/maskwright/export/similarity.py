"""Export a model that was fine-tuned for similarity to a folder of sentence-transformers, with its model card."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import yaml
from numpy.typing import NDArray
from torch import Tensor

from maskwright.export.card import CardOptions, escape, show_code, show_sentences
from maskwright.export.comparison import (
    OWN_READER,
    Comparison,
    Sample,
    check_equal,
    choose_sample,
    compare,
    find_reader,
)
from maskwright.export.huggingface import (
    NEEDS_THEIRS,
    complete_settings,
    embed_by_theirs,
    find_encoder_obstacles,
    find_padding_obstacles,
    refuse,
)
from maskwright.export.onnx_graph import SentenceEncoder
from maskwright.export.task_card import TaskOrigin, describe_limits, describe_task
from maskwright.models.any_encoder import find_hidden_size, name_encoder
from maskwright.tasks.model import TaskModel
from maskwright.tasks.retrieval.dense import DenseRetrieval
from maskwright.text.tokenizer.tokenizer import Tokenizer

Embed = Callable[[Sequence[Sequence[int]]], NDArray[Any]]
"""Vectors (B, D) of texts given by their ids, as Maskwright's own pipeline makes them."""


def export_similarity(
    model: TaskModel,
    graph: SentenceEncoder,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    texts: Sequence[str],
    embed: Embed,
    say: Callable[[str], None],
) -> Comparison:
    """Write the folder, read it back and compare vectors of the texts; `graph` says how they are pooled."""
    obstacles = find_encoder_obstacles(model.encoder) or find_padding_obstacles(model.encoder, tokenizer)
    refuse("a sentence-transformers folder", obstacles)
    sample = choose_sample(texts, tokenizer, model.encoder)
    model.save_pretrained(folder, tokenizer)
    complete_settings(folder, model.encoder, tokenizer)
    read_back = TaskModel.from_pretrained(folder)
    say(f"{OWN_READER}: {check_equal(model, read_back, folder)} tensors are bit-equal")
    reader = find_reader("sentence_transformers")
    if reader is None:
        reader = OWN_READER
        say(f"sentence-transformers is not installed, so the comparison is with {OWN_READER} only; {NEEDS_THEIRS}")
        found = _embed(SentenceEncoder(read_back.encoder, graph.pooling, graph.normalizes), sample)
    else:
        found = embed_by_theirs(folder, sample)
    comparison = compare(reader, list(torch.from_numpy(embed(sample.rows))), list(found.cpu()), sample)
    say(comparison.describe("vectors"))
    return comparison


@torch.no_grad()
def _embed(graph: SentenceEncoder, sample: Sample) -> Tensor:
    _, vectors = graph.eval()(**sample.pad())
    return vectors


def build_similarity_card(
    name: str, model: TaskModel, graph: SentenceEncoder, origin: TaskOrigin, comparison: Comparison, card: CardOptions
) -> str:
    """`name` is the folder's."""
    family, facts = name_encoder(model.encoder), describe_task(model, origin)
    values: dict[str, Any] = {key: value for key, value in asdict(card).items() if value is not None}
    values |= {"library_name": "sentence-transformers", "pipeline_tag": "sentence-similarity"}
    values["tags"] = ["maskwright", family.lower(), "feature-extraction"]
    num_parameters = sum(param.numel() for param in model.encoder.parameters())
    length = ", of length 1" if graph.normalizes else ""
    shorter = _describe_prefixes(name, model)
    sections = [
        f"---\n{yaml.safe_dump(values, sort_keys=False)}---",
        f"# {escape(name)}",
        f"A {family} encoder of {num_parameters:,} parameters that turns a text into a vector of"
        f" {find_hidden_size(model.encoder)} numbers (pooling: {graph.pooling}{length}), fine-tuned so that the"
        " cosine of two vectors says how alike their texts are. Made with Maskwright, for sentence-transformers.",
        f"## How to use\n\nFrom the folder that holds this one:\n\n{show_sentences(name, model.encoder)}",
        *([shorter] if shorter else []),
        f"## Fine-tuning\n\n{facts['Fine-tuning']}",
        f"## Figures\n\n{facts['Figures']}\n\nAt export, {comparison.describe('vectors')}.",
        f"## Limits\n\n{describe_limits(model)}",
    ]
    return "\n\n".join(sections) + "\n"


def _describe_prefixes(name: str, model: TaskModel) -> str:
    """The section about prefixes of the vectors that are vectors too; empty where there are none."""
    dims = model.task.settings.dims if isinstance(model.task, DenseRetrieval) else ()
    widths = [width for width in dims if width < find_hidden_size(model.encoder)]
    if not widths:
        return ""
    usage = show_code(
        f"from sentence_transformers import SentenceTransformer\n\nmodel = SentenceTransformer({name!r},"
        f" truncate_dim={widths[-1]})"
    )
    return (
        f"## Shorter vectors\n\nThe first {', '.join(map(str, widths))} numbers of a vector were trained to be vectors"
        f" themselves (Matryoshka):\n\n{usage}"
    )
