"""Export a model to ONNX, in fp32 and in int8, and say what each version costs and how well it answers."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from maskwright.export.answers import answer_with_onnx, answer_with_torch
from maskwright.export.checking import Agreement, check_graph
from maskwright.export.int8 import quantize_graph
from maskwright.export.measuring import LATENCY_BATCHES, Exam, Figures, build_exam
from maskwright.export.onnx_graph import check_packages, find_input_names, name_data_file, write_graph
from maskwright.models.encoding import find_max_length
from maskwright.models.weights_reading import CONFIG_FILE
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.storage import write_text
from maskwright.text.tokenizer import Tokenizer

GRAPH_FILE = "model.onnx"
INT8_FILE = "model_int8.onnx"
_USUAL_MAX_LENGTH = 512
"""What an encoder that does not say how long its input may be is checked up to."""
_NOTABLE_LOSS = 0.1

Say = Callable[[str], None]


def export_onnx(
    model: MaskedLanguageModel,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    int8: bool,
    texts: Sequence[str],
    say: Say,
) -> dict[str, Any]:
    """Write `model.onnx` (and `model_int8.onnx`), config.json and the tokenizer into `folder`, which may exist.

    The graph is compared with torch first; if it computes something else, nothing is written. `texts` are held-out
    ones to measure the loss on. The answer holds the figures that were said.
    """
    check_packages()
    model = copy.deepcopy(model).cpu().float().eval()
    names = find_input_names(model.encoder)
    max_length = find_max_length(model.encoder) or _USUAL_MAX_LENGTH
    exam = build_exam(model, tokenizer, texts, names, max_length)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
        place = Path(temporary)
        write_graph(model, place / GRAPH_FILE)
        agreement = check_graph(place / GRAPH_FILE, answer_with_torch(model), names, model.vocab_size, max_length)
        if int8:
            quantize_graph(place / GRAPH_FILE, place / INT8_FILE)
        versions = _measure_versions(model, place, exam)
        write_text(place / CONFIG_FILE, json.dumps(model.snapshot(tokenizer).config, indent=2) + "\n")
        tokenizer.save(place)
        folder.mkdir(exist_ok=True)
        for file in place.iterdir():
            os.replace(file, folder / file.name)
    _report(versions, agreement, exam, say)
    return {
        "largest_difference": agreement.largest_difference,
        "longest_checked": agreement.longest,
        "threads": torch.get_num_threads(),
        "length": exam.length,
        "num_asked": exam.num_asked,
        "versions": {name: asdict(figures) for name, figures in versions.items()},
    }


def _measure_versions(model: MaskedLanguageModel, place: Path, exam: Exam) -> dict[str, Figures]:
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    versions = {"torch fp32": exam.measure(answer_with_torch(model), size)}
    for name, file in (("onnx fp32", place / GRAPH_FILE), ("onnx int8", place / INT8_FILE)):
        if file.exists():
            data = file.with_name(name_data_file(file))
            size = sum(part.stat().st_size for part in (file, data) if part.exists())
            versions[name] = exam.measure(answer_with_onnx(file), size)
    return versions


def _report(versions: dict[str, Figures], agreement: Agreement, exam: Exam, say: Say) -> None:
    say(f"{GRAPH_FILE}: {agreement}")
    timed = "".join(f"{f'{rows} x {exam.length} tokens':>16}" for rows in LATENCY_BATCHES)
    say(f"{'':<10}{'size':>12}{timed}{'held-out loss':>16}")
    for name, figures in versions.items():
        latencies = "".join(f"{figures.latency_ms[rows]:>13.1f} ms" for rows in LATENCY_BATCHES)
        say(f"{name:<10}{figures.size_bytes / 1e6:>9.1f} MB{latencies}{figures.loss:>16.4f}")
    threads = torch.get_num_threads()
    say(
        f"latency is the median on {threads} CPU thread{'s' if threads > 1 else ''}, the loss the mean over"
        f" {exam.num_asked:,} tokens in nats"
    )
    if "onnx int8" in versions:
        growth = versions["onnx int8"].loss - versions["onnx fp32"].loss
        if growth > _NOTABLE_LOSS:
            say(f"int8 costs {growth:.2f} nats of held-out loss, which is much; use {GRAPH_FILE} where answers matter")
