"""Export a model to ONNX, in fp32 and in int8, and say what each version costs and how well it answers."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, TypeVar

import torch

from maskwright.export.checking import Agreement, Answer, answer_with_onnx, answer_with_torch, check_graph
from maskwright.export.int8 import quantize_graph
from maskwright.export.measuring import LATENCY_BATCHES, Exam, Figures, build_exam
from maskwright.export.onnx_graph import ExportedModel, check_packages, find_input_names, name_data_file, write_graph
from maskwright.models.any_encoder import find_max_length, has_segments
from maskwright.models.files.model_folder import CONFIG_FILE
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.storage import naming_if_full, write_text
from maskwright.text.tokenizer.tokenizer import Tokenizer

GRAPH_FILE = "model.onnx"
INT8_FILE = "model_int8.onnx"
_USUAL_MAX_LENGTH = 512
"""What an encoder that does not say how long its input may be is checked up to."""
_NOTABLE_LOSS = 0.1

Say = Callable[[str], None]
FiguresT_co = TypeVar("FiguresT_co", covariant=True)


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
    exam = build_exam(model, tokenizer, texts, find_input_names(model.encoder), find_checked_length(model))
    with open_graphs(model, tokenizer, folder, int8) as (place, agreement):
        versions = measure_versions(model, place, exam)
    _report(versions, agreement, exam, say)
    return describe_versions(versions, agreement, exam.length, num_asked=exam.num_asked)


@contextmanager
def open_graphs(
    model: ExportedModel, tokenizer: Tokenizer, folder: Path, int8: bool
) -> Iterator[tuple[Path, Agreement]]:
    """A folder with the checked graphs, whose files go to `folder` when the block ends without an error.

    `model` is on the CPU, in fp32 and in evaluation mode.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary,
        naming_if_full(folder, Path(temporary)),
    ):
        place, names = Path(temporary), find_input_names(model.encoder)
        write_graph(model, place / GRAPH_FILE)
        expected, longest = answer_with_torch(model), find_checked_length(model)
        agreement = check_graph(place / GRAPH_FILE, expected, names, model.vocab_size, longest)
        if int8:
            quantize_graph(place / GRAPH_FILE, place / INT8_FILE)
        yield place, agreement
        write_text(place / CONFIG_FILE, json.dumps(model.snapshot(tokenizer).config, indent=2) + "\n")
        tokenizer.save(place, has_segments(model.encoder))
        folder.mkdir(exist_ok=True)
        for file in place.iterdir():
            os.replace(file, folder / file.name)


def find_checked_length(model: ExportedModel) -> int:
    return find_max_length(model.encoder) or _USUAL_MAX_LENGTH


class _Exam(Protocol[FiguresT_co]):
    def measure(self, answer: Answer, size_bytes: int) -> FiguresT_co: ...


def measure_versions(model: ExportedModel, place: Path, exam: _Exam[FiguresT_co]) -> dict[str, FiguresT_co]:
    """What an exam says of the model in torch and of each graph in a folder."""
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    versions = {"torch fp32": exam.measure(answer_with_torch(model), size)}
    for name, file in (("onnx fp32", place / GRAPH_FILE), ("onnx int8", place / INT8_FILE)):
        if file.exists():
            versions[name] = exam.measure(answer_with_onnx(file), _measure_size(file))
    return versions


def describe_versions(versions: Mapping[str, Any], agreement: Agreement, length: int, **asked: int) -> dict[str, Any]:
    """What was measured as plain values; `asked` says on how much."""
    return {
        "largest_difference": agreement.largest_difference,
        "longest_checked": agreement.longest,
        "threads": torch.get_num_threads(),
        "length": length,
        **asked,
        "versions": {name: asdict(figures) for name, figures in versions.items()},
    }


def _measure_size(file: Path) -> int:
    """Bytes of a graph, with those of weights beside it."""
    data = file.with_name(name_data_file(file))
    return sum(part.stat().st_size for part in (file, data) if part.exists())


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
