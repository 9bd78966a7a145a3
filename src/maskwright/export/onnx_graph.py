"""From a model to an ONNX file: named inputs, logits out, any batch size and length."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from maskwright.errors import InputError
from maskwright.models.any_encoder import call_foreign, has_segments, name_encoder
from maskwright.models.encoder import PackedEncoder
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.tasks.model import TaskModel

ExportedModel = MaskedLanguageModel | TaskModel
OUTPUT_NAME = "logits"
LARGEST_FILE_BYTES = 1_900_000_000
"""Above this, weights go into a file beside the graph: protobuf cannot hold 2 GiB."""
_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_OPSET = 18
"""The oldest the exporter writes, so that older runtimes read the file too."""
_AXES = {0: "batch_size", 1: "sequence_length"}


def import_package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(
            "ONNX export needs onnx, onnxscript and onnxruntime; run: pip install 'maskwright[export]'"
        ) from error


def check_packages() -> None:
    for name in _PACKAGES:
        import_package(name)


class LogitsOfPadded(nn.Module):
    """A model as the graph's inputs see it: padded rows in, logits (batch, length, vocabulary) out, or the task's."""

    def __init__(self, model: ExportedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        if isinstance(self.model, TaskModel) or isinstance(self.model.encoder, PackedEncoder):
            logits: Tensor = self.model(**inputs)["logits"]
            return logits
        # The adapter that a foreign encoder is trained through looks into the batch, which a graph cannot.
        return self.model.predict(call_foreign(self.model.encoder, inputs))


def find_input_names(encoder: nn.Module) -> list[str]:
    """Segments are an input only where the encoder tells them apart."""
    names = ["input_ids", "attention_mask"]
    return [*names, "token_type_ids"] if has_segments(encoder) else names


@torch.no_grad()
def write_graph(model: ExportedModel, path: Path) -> None:
    """Trace a model, on the CPU and in evaluation mode, and write it; large weights go to `path` + `_data`."""
    names = find_input_names(model.encoder)
    # A tensor for each: the tracer takes one that is given twice for one input.
    example = {name: torch.ones(2, 3, dtype=torch.long) for name in names}
    try:
        with _silence():
            program: Any = torch.onnx.export(
                LogitsOfPadded(model).eval(),
                kwargs=example,
                input_names=names,
                output_names=[OUTPUT_NAME],
                opset_version=_OPSET,
                dynamic_shapes=dict.fromkeys(names, _AXES),
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        reason = str(error.__cause__ or error).strip().splitlines()[0]
        raise InputError(
            f"torch.onnx cannot trace {name_encoder(model.encoder)} ({reason}); rewrite that part of the encoder,"
            " or export the model in another format"
        ) from error
    save_graph(program.model, path)


def save_graph(graph_model: Any, path: Path) -> None:
    """Write an `onnx_ir.Model` without the exporter's notes, which hold the source code's paths on this machine."""
    ir = import_package("onnxscript").ir
    import_module("onnx_ir.passes.common").ClearMetadataAndDocStringPass()(graph_model)
    num_bytes = sum(value.const_value.nbytes for value in graph_model.graph.initializers.values())
    ir.save(graph_model, path, external_data=name_data_file(path) if num_bytes > LARGEST_FILE_BYTES else None)


def name_data_file(path: Path) -> str:
    """The file of a graph's weights, where they are not in its own, as optimum and transformers.js name it."""
    return f"{path.name}_data"


@contextmanager
def _silence() -> Iterator[None]:
    """The exporter tells of packages it does without and prints graphs it gave up; what matters it raises."""
    with warnings.catch_warnings(), silence_logging(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        warnings.simplefilter("ignore")
        yield


@contextmanager
def silence_logging() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
