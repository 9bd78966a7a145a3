"""Export a model to ONNX, in fp32 and in smaller versions, and report the cost and the quality of each."""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, TypeVar

import torch

from maskwright.export.measuring import Exam, Figures, build_exam, describe_latency, tabulate
from maskwright.export.onnx_graph import (
    Agreement,
    Answer,
    ExportedModel,
    SentenceEncoder,
    answer_with_onnx,
    answer_with_torch,
    check_graph,
    check_packages,
    check_version,
    find_input_names,
    name_data_file,
    write_graph,
)
from maskwright.export.onnx_versions import halve_graph, quantize_graph
from maskwright.models.any_encoder import find_max_length, has_segments
from maskwright.models.files.model_folder import CONFIG_FILE, write_small_files
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.objectives.saving import ModelFiles
from maskwright.storage import naming_if_full
from maskwright.text.tokenizer.tokenizer import Tokenizer

GRAPH_FILE = "model.onnx"
INT8_FILE = "model_int8.onnx"
FP16_FILE = "model_fp16.onnx"
MODEL_FOLDER = "model"
"""Where a page has its graph."""
BROWSER_FOLDER = "onnx"
"""Where transformers.js looks for graphs, under names of its own."""
BROWSER_NAMES = {GRAPH_FILE: "model.onnx", INT8_FILE: "model_quantized.onnx", FP16_FILE: "model_fp16.onnx"}
_USUAL_MAX_LENGTH = 512
"""The length up to which an encoder of unknown maximum length is checked."""
_NOTABLE_LOSS = 0.1

Say = Callable[[str], None]
FiguresT_co = TypeVar("FiguresT_co", covariant=True)


def export_onnx(
    model: MaskedLanguageModel,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    int8: bool = False,
    fp16: bool = False,
    texts: Sequence[str],
    say: Say,
) -> dict[str, Any]:
    """Write `model.onnx` (and those in int8 and fp16), config.json and the tokenizer into `folder`, which may exist.

    The graph is compared with torch first; if it computes something else, nothing is written. `texts` are held-out
    texts to measure the loss on. Returns the reported figures.
    """
    check_packages()
    model = copy.deepcopy(model).cpu().float().eval()
    exam = build_exam(model, tokenizer, texts, find_input_names(model.encoder), find_checked_length(model))
    with open_graphs(model, tokenizer, folder, int8=int8, fp16=fp16) as (place, agreement):
        versions = measure_versions(model, place, exam)
    _report(versions, agreement, exam, say)
    return describe_versions(versions, agreement, exam.length, num_asked=exam.num_asked)


@contextmanager
def open_graphs(
    model: ExportedModel,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    int8: bool,
    fp16: bool,
    files: ModelFiles | None = None,
) -> Iterator[tuple[Path, Agreement]]:
    """A folder with the checked graphs, whose files go to `folder` when the block ends without an error.

    `model` is on the CPU, in fp32 and in evaluation mode. `files` describe it; unset: as it describes itself.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary,
        naming_if_full(folder, Path(temporary)),
    ):
        place = Path(temporary)
        write_graph(model, place / GRAPH_FILE)
        agreement = check_graph(place / GRAPH_FILE, model, find_checked_length(model))
        for smaller, is_wanted, write in ((INT8_FILE, int8, quantize_graph), (FP16_FILE, fp16, halve_graph)):
            if is_wanted:
                write(place / GRAPH_FILE, place / smaller)
                check_version(place / smaller, model, find_checked_length(model))
        yield place, agreement
        if files is None:
            assert not isinstance(model, SentenceEncoder), "an encoder comes with its files"
            files = ModelFiles(model.snapshot(tokenizer).config)
        write_small_files(place, {CONFIG_FILE: files.config, **files.small_files})
        tokenizer.save(place, has_segments(model.encoder), max_length=find_max_length(model.encoder))
        folder.mkdir(exist_ok=True)
        for file in [path for path in place.rglob("*") if path.is_file()]:
            target = folder / file.relative_to(place)
            target.parent.mkdir(exist_ok=True)
            os.replace(file, target)
        _link_for_browsers(folder)


def _link_for_browsers(folder: Path) -> None:
    """Give the graphs the names that transformers.js knows: links, or copies on a disk that has no links."""
    place = folder / BROWSER_FOLDER
    place.mkdir(exist_ok=True)
    for file, name in BROWSER_NAMES.items():
        data = name_data_file(folder / file)  # a graph names this file, whatever it is called itself
        for source, target in ((folder / file, place / name), (folder / data, place / data)):
            target.unlink(missing_ok=True)
            if source.exists():
                _link_or_copy(source, target)


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def find_checked_length(model: ExportedModel) -> int:
    return find_max_length(model.encoder) or _USUAL_MAX_LENGTH


class _Exam(Protocol[FiguresT_co]):
    def measure(self, answer: Answer, size_bytes: int) -> FiguresT_co: ...


def measure_versions(model: ExportedModel, place: Path, exam: _Exam[FiguresT_co]) -> dict[str, FiguresT_co]:
    """Measure the model in torch and each graph in a folder."""
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    versions = {"torch fp32": exam.measure(answer_with_torch(model), size)}
    for name, file in {
        "onnx fp32": place / GRAPH_FILE,
        "onnx fp16": place / FP16_FILE,
        "onnx int8": place / INT8_FILE,
    }.items():
        if file.exists():
            versions[name] = exam.measure(answer_with_onnx(file), _measure_size(file))
    return versions


def describe_versions(versions: Mapping[str, Any], agreement: Agreement, length: int, **asked: int) -> dict[str, Any]:
    """The measurements as plain values; `asked` describes their data."""
    return {
        "largest_difference": agreement.largest_difference,
        "longest_checked": agreement.longest,
        "threads": torch.get_num_threads(),
        "length": length,
        **asked,
        "versions": {name: asdict(figures) for name, figures in versions.items()},
    }


def _measure_size(file: Path) -> int:
    """Bytes of a graph, with its weights file."""
    data = file.with_name(name_data_file(file))
    return sum(part.stat().st_size for part in (file, data) if part.exists())


def _report(versions: dict[str, Figures], agreement: Agreement, exam: Exam, say: Say) -> None:
    say(f"{GRAPH_FILE}: {agreement}")
    for line in tabulate(versions, exam.length, {"held-out loss": lambda figures: f"{figures.loss:.4f}"}):
        say(line)
    say(f"{describe_latency()}, the loss the mean over {exam.num_asked:,} tokens in nats")
    if "onnx int8" in versions:
        growth = versions["onnx int8"].loss - versions["onnx fp32"].loss
        if growth > _NOTABLE_LOSS:
            say(f"int8 costs {growth:.2f} nats of held-out loss, which is much; use {GRAPH_FILE} where answers matter")
