"""Export a model to ONNX, in fp32 and in int8, and report the cost and the quality of each version.

Int8 is dynamic quantization: weights are integers with a scale, and activations are quantized at run time.
onnxruntime's own tool does the products with constant weights, with a scale for each output channel. It would leave the
embedding table, which most models share with the vocabulary projection, in fp32 or store it twice; here it becomes one
int8 table, with a scale per token, that serves both.
"""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from maskwright.export.measuring import Exam, Figures, build_exam, describe_latency, tabulate
from maskwright.export.onnx_graph import (
    LARGEST_FILE_BYTES,
    Agreement,
    Answer,
    ExportedModel,
    SentenceEncoder,
    answer_with_onnx,
    answer_with_torch,
    check_graph,
    check_packages,
    find_input_names,
    import_package,
    name_data_file,
    silence_logging,
    write_graph,
)
from maskwright.models.any_encoder import find_max_length, has_segments
from maskwright.models.files.model_folder import CONFIG_FILE, write_small_files
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.objectives.saving import ModelFiles
from maskwright.storage import naming_if_full
from maskwright.text.tokenizer.tokenizer import Tokenizer

GRAPH_FILE = "model.onnx"
INT8_FILE = "model_int8.onnx"
BROWSER_FOLDER = "onnx"
"""Where transformers.js looks for graphs, under names of its own."""
_BROWSER_NAMES = {GRAPH_FILE: "model.onnx", INT8_FILE: "model_quantized.onnx"}
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
    int8: bool,
    texts: Sequence[str],
    say: Say,
) -> dict[str, Any]:
    """Write `model.onnx` (and `model_int8.onnx`), config.json and the tokenizer into `folder`, which may exist.

    The graph is compared with torch first; if it computes something else, nothing is written. `texts` are held-out
    texts to measure the loss on. Returns the reported figures.
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
    model: ExportedModel, tokenizer: Tokenizer, folder: Path, int8: bool, files: ModelFiles | None = None
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
        if int8:
            quantize_graph(place / GRAPH_FILE, place / INT8_FILE)
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
    for file, name in _BROWSER_NAMES.items():
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
    for name, file in (("onnx fp32", place / GRAPH_FILE), ("onnx int8", place / INT8_FILE)):
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


_LARGEST_WEIGHT = 64
"""Seven bits: with eight, x86 processors without VNNI add two products beyond 16 bits and clip the sum."""


def quantize_graph(source: Path, target: Path) -> None:
    """Write the int8 version of an ONNX file that `write_graph` wrote."""
    onnx, quantization = import_package("onnx"), import_package("onnxruntime.quantization")
    with TemporaryDirectory(dir=target.parent) as temporary:
        halfway = Path(temporary) / target.name
        with silence_logging():  # its advice on pre-processing is not for the user, who has no say in it
            quantization.quantize_dynamic(
                source,
                halfway,
                op_types_to_quantize=["MatMul"],
                per_channel=True,
                reduce_range=True,
                weight_type=quantization.QuantType.QInt8,
                use_external_data_format=source.with_name(name_data_file(source)).exists(),
            )
        model = onnx.load(halfway)
    quantize_tables(model.graph)
    num_bytes = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    onnx.save_model(
        model, target, save_as_external_data=num_bytes > LARGEST_FILE_BYTES, location=name_data_file(target)
    )


def quantize_tables(graph: Any) -> None:
    """Replace tables for lookups and for products with hidden states by int8 tables."""
    matrices = [tensor for tensor in graph.initializer if len(tensor.dims) == 2]
    for table in matrices:
        users = _TableUsers(graph, table.name)
        if users.lookups or users.projections:
            _replace_table(graph, table, users)


class _TableUsers:
    """The nodes that use a table in a way that int8 supports."""

    def __init__(self, graph: Any, table: str) -> None:
        users = [node for node in graph.node if table in node.input]
        self.lookups = [node for node in users if node.op_type == "Gather" and list(node.input) == [table, "input_ids"]]
        transposes = {node.output[0]: node for node in users if node.op_type == "Transpose"}
        self.projections = [node for node in graph.node if node.op_type == "MatMul" and node.input[1] in transposes]
        served = {node.input[1] for node in self.projections}
        others = [node for node in graph.node if node not in self.projections and served.intersection(node.input)]
        self.transposes = [transposes[name] for name in served]
        self.are_all_served = not others and len(users) == len(self.lookups) + len(self.transposes)


def _replace_table(graph: Any, table: Any, users: _TableUsers) -> None:
    helper = import_package("onnx").numpy_helper
    rows, scales = quantize_rows(helper.to_array(table))
    names = _TableNames(f"{table.name}_int8", f"{table.name}_scales", f"{table.name}_last_axis")
    for values, name in ((rows, names.rows), (scales, names.scales), (np.array([-1]), names.last_axis)):
        graph.initializer.append(helper.from_array(values, name))
    nodes = []
    for node in graph.node:
        if node in users.lookups:
            nodes += _look_up(names, node.input[1], node.output[0])
        elif node in users.projections:
            nodes += _project(names, node.input[0], node.output[0])
        elif not users.are_all_served or node not in users.transposes:
            nodes.append(node)
    if users.are_all_served:
        graph.initializer.remove(table)
    del graph.node[:]
    graph.node.extend(nodes)


class _TableNames(NamedTuple):
    rows: str
    scales: str
    last_axis: str


def _look_up(table: _TableNames, ids: str, output: str) -> list[Any]:
    onnx = import_package("onnx")
    make = onnx.helper.make_node
    return [
        make("Gather", [table.rows, ids], [f"{output}_rows"]),
        make("Cast", [f"{output}_rows"], [f"{output}_values"], to=onnx.TensorProto.FLOAT),
        make("Gather", [table.scales, ids], [f"{output}_scales"]),
        make("Unsqueeze", [f"{output}_scales", table.last_axis], [f"{output}_scale_column"]),
        make("Mul", [f"{output}_values", f"{output}_scale_column"], [output]),
    ]


def _project(table: _TableNames, hidden: str, output: str) -> list[Any]:
    """Write a product as onnxruntime's tool does, so that its session finds the same fast kernel."""
    onnx = import_package("onnx")
    make = onnx.helper.make_node
    quantized, scale, zero_point = (f"{output}_hidden_{part}" for part in ("int8", "scale", "zero_point"))
    return [
        make("DynamicQuantizeLinear", [hidden], [quantized, scale, zero_point]),
        make("Transpose", [table.rows], [f"{output}_columns"], perm=[1, 0]),
        make("MatMulInteger", [quantized, f"{output}_columns", zero_point], [f"{output}_int32"]),
        make("Cast", [f"{output}_int32"], [f"{output}_product"], to=onnx.TensorProto.FLOAT),
        make("Mul", [scale, table.scales], [f"{output}_scales"]),
        make("Mul", [f"{output}_product", f"{output}_scales"], [output]),
    ]


def quantize_rows(table: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Quantize a table to int8 with a scale per row, rounding to nearest."""
    scales = np.abs(table).max(axis=1) / _LARGEST_WEIGHT
    scales = np.where(scales == 0, 1, scales).astype(np.float32)
    return np.rint(table / scales[:, None]).astype(np.int8), scales
