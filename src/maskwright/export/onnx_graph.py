"""From a model to an ONNX file, and the check that both compute the same for any batch size and length.

The graph has named inputs and gives logits. For the check, the model in torch and the file in onnxruntime get the same
arrays.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from maskwright.errors import InputError, RunError
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
    """A module with the graph's interface: padded rows to logits (batch, length, vocabulary), or those of the task."""

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
    """Segments are an input only if the encoder uses them."""
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
    """The file of a graph's external weights, as optimum and transformers.js name it."""
    return f"{path.name}_data"


@contextmanager
def _silence() -> Iterator[None]:
    """Silence the exporter's notes on missing optional packages and its debug prints; errors are raised anyway."""
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


LARGEST_DIFFERENCE = 1e-3
_LONGEST_CHECKED = 2048
"""Attention over longer rows would take gigabytes and minutes."""
_NUM_AXES_OF_WHOLE_TEXTS = 2
"""Logits of a classifier have no axis for the tokens."""
_MOST_ROWS = 7
_MOST_TOKENS_OF_MANY_ROWS = 128


@dataclass(frozen=True)
class Agreement:
    """The largest difference of logits, and the inputs it was measured on."""

    largest_difference: float
    longest: int

    def __str__(self) -> str:
        return (
            f"logits differ from torch's by at most {self.largest_difference:.1e}, seen on lengths 1 to {self.longest}"
            f" in batches of 1 to {_MOST_ROWS}"
        )


def check_graph(path: Path, expected: Answer, names: list[str], vocab_size: int, max_length: int) -> Agreement:
    """Refuse a file that is not valid ONNX, gives NaN, or is further from torch than `LARGEST_DIFFERENCE`."""
    onnx = import_package("onnx")
    try:
        onnx.checker.check_model(str(path))
    except onnx.checker.ValidationError as error:
        raise RunError(f"the exported graph is not valid ONNX: {str(error).splitlines()[0]}") from error
    longest = min(max_length, _LONGEST_CHECKED)
    found = answer_with_onnx(path)
    worst = 0.0
    for inputs in build_inputs(names, vocab_size, longest):
        logits = found(inputs)
        rows, length = inputs["input_ids"].shape
        if not np.isfinite(logits).all():
            raise RunError(f"the exported graph gives NaN or infinity on a batch of {rows} of length {length}")
        is_real = inputs["attention_mask"] != 0
        if logits.ndim == _NUM_AXES_OF_WHOLE_TEXTS:
            is_real = is_real.any(axis=1)
        difference = float(np.abs(logits - expected(inputs))[is_real].max())
        if not difference <= LARGEST_DIFFERENCE:
            raise RunError(
                f"the exported graph's logits differ from torch's by {difference:.3g} on a batch of {rows} of length"
                f" {length}; at most {LARGEST_DIFFERENCE:g} is allowed, so nothing was written"
            )
        worst = max(worst, difference)
    return Agreement(worst, longest)


def build_inputs(names: list[str], vocab_size: int, longest: int) -> Iterator[Inputs]:
    """Random tokens in batches whose rows differ in length; the last of several rows is all padding."""
    many = min(longest, _MOST_TOKENS_OF_MANY_ROWS)
    shapes = [(1, 1), (_MOST_ROWS, 1), (2, min(longest, 2)), (_MOST_ROWS, (many + 1) // 2), (_MOST_ROWS, many)]
    random = np.random.default_rng(0)
    for rows, length in [*shapes, (1, longest)]:
        lengths = random.integers(1, length + 1, rows)
        lengths[0] = length
        if rows > 1:
            lengths[-1] = 0
        values = {
            "input_ids": random.integers(0, vocab_size, (rows, length)),
            "attention_mask": (np.arange(length) < lengths[:, None]).astype(np.int64),
            "token_type_ids": random.integers(0, 2, (rows, length)),
        }
        yield {name: values[name] for name in names}


Inputs = Mapping[str, NDArray[np.int64]]
"""(batch, length) each, under the graph's names."""
Answer = Callable[[Inputs], NDArray[np.float32]]
"""Logits (batch, length, vocabulary), or those of a task."""


def answer_with_torch(model: ExportedModel) -> Answer:
    """`model` is on the CPU and in evaluation mode."""

    @torch.inference_mode()
    def answer(inputs: Inputs) -> NDArray[np.float32]:
        tensors = {name: torch.from_numpy(values) for name, values in inputs.items()}
        logits: NDArray[np.float32] = model(**tensors)["logits"].numpy()
        return logits

    return answer


def answer_with_onnx(path: Path) -> Answer:
    """On the CPU, with as many threads as torch has."""
    onnxruntime = import_package("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session: Any = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def answer(inputs: Inputs) -> NDArray[np.float32]:
        logits: NDArray[np.float32] = session.run([OUTPUT_NAME], dict(inputs))[0]
        return logits

    return answer
