"""Export an encoder to ONNX with the vectors of its texts, and report the cost and the agreement of each version.

The graph gives `last_hidden_state` and, pooled and perhaps of length 1, `sentence_embedding`. B texts, D width.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.errors import RunError
from maskwright.export.comparison import Sample, choose_sample
from maskwright.export.measuring import (
    MEASURED_LENGTH,
    Cost,
    build_timed,
    describe_latency,
    measure_latency_ms,
    name_inputs,
    tabulate,
)
from maskwright.export.onnx import GRAPH_FILE, describe_versions, find_checked_length, measure_versions, open_graphs
from maskwright.export.onnx_graph import (
    LARGEST_DIFFERENCE,
    Agreement,
    Answer,
    Inputs,
    SentenceEncoder,
    check_packages,
    find_input_names,
)
from maskwright.objectives.saving import ModelFiles
from maskwright.text.tokenizer.tokenizer import Tokenizer

Say = Callable[[str], None]
Embed = Callable[[Sequence[Sequence[int]]], NDArray[np.float32]]
"""Vectors (B, D) of texts given by their ids, as Maskwright's own pipeline makes them."""


@dataclass(frozen=True)
class SentenceFigures(Cost):
    """The measurements of one version of a model."""

    mean_cosine: float
    """Of a text's vector with that of the pipeline."""
    smallest_cosine: float
    largest_difference: float


@dataclass(frozen=True)
class _SentenceExam:
    """Texts for all versions of a model, with the vectors of the pipeline."""

    inputs: Inputs
    expected: NDArray[np.float32]
    timed: dict[int, Inputs]
    length: int

    def measure(self, answer: Answer, size_bytes: int) -> SentenceFigures:
        latencies = {rows: measure_latency_ms(answer, inputs) for rows, inputs in self.timed.items()}
        found = answer(self.inputs)
        cosines = (_normalize(found) * _normalize(self.expected)).sum(axis=-1)
        difference = float(np.abs(found - self.expected).max())
        return SentenceFigures(size_bytes, latencies, float(cosines.mean()), float(cosines.min()), difference)


def export_sentence_onnx(
    model: SentenceEncoder,
    tokenizer: Tokenizer,
    folder: Path,
    files: ModelFiles,
    *,
    int8: bool = False,
    fp16: bool = False,
    texts: Sequence[str],
    embed: Embed,
    say: Say,
) -> dict[str, Any]:
    """Write `model.onnx` (and those in int8 and fp16), the tokenizer and `files` into `folder`, which may exist.

    The graph is compared with torch first, and its vectors with those of `embed`; if it computes something else,
    nothing is written. Returns the reported figures.
    """
    check_packages()
    model = copy.deepcopy(model).cpu().float().eval()
    sample = choose_sample(texts, tokenizer, model.encoder)
    exam = _build_exam(sample, embed, find_input_names(model.encoder), find_checked_length(model))
    with open_graphs(model, tokenizer, folder, int8=int8, fp16=fp16, files=files) as (place, agreement):
        versions = measure_versions(model, place, exam)
        _check_vectors(versions["onnx fp32"])
    _report(versions, agreement, exam, sample, say)
    return describe_versions(versions, agreement, exam.length, num_texts=len(sample.rows))


def _build_exam(sample: Sample, embed: Embed, names: list[str], max_length: int) -> _SentenceExam:
    length = min(max_length, MEASURED_LENGTH)
    padded = sample.pad()
    inputs = name_inputs(padded["input_ids"].numpy(), padded["attention_mask"].numpy(), names)
    return _SentenceExam(inputs, embed(sample.rows), build_timed(sample.rows, length, names), length)


def _check_vectors(figures: SentenceFigures) -> None:
    if not figures.largest_difference <= LARGEST_DIFFERENCE:
        raise RunError(
            f"the exported graph's vectors differ from those of maskwright's pipeline by"
            f" {figures.largest_difference:.3g}; at most {LARGEST_DIFFERENCE:g} is allowed, so nothing was written"
        )


def _normalize(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))


def _report(
    versions: Mapping[str, SentenceFigures], agreement: Agreement, exam: _SentenceExam, sample: Sample, say: Say
) -> None:
    say(f"{GRAPH_FILE}: {agreement}")
    columns = {
        "mean cosine": lambda figures: f"{figures.mean_cosine:.6f}",
        "smallest": lambda figures: f"{figures.smallest_cosine:.6f}",
    }
    for line in tabulate(versions, exam.length, columns):
        say(line)
    compared = f"the vectors of {len(sample.rows):,} texts and those of maskwright's pipeline"
    say(f"{describe_latency()}; cosines are between {compared}")
