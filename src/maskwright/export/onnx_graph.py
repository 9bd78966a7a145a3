"""From a model to an ONNX file, and the check that both compute the same for any batch size and length.

The graph has named inputs and outputs, by what the model is for. For the check, the model in torch and the file in
onnxruntime get the same arrays. B rows, S length, D width.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from maskwright.errors import InputError, RunError
from maskwright.models.any_encoder import call_foreign, count_tokens, has_segments, name_encoder
from maskwright.models.encoder import PackedEncoder
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.tasks.model import TaskModel
from maskwright.tasks.qa.question_answering import QuestionAnswering
from maskwright.tasks.retrieval.colbert import LateRetrieval
from maskwright.tasks.retrieval.splade import SpladeRetrieval
from maskwright.tasks.task import Task

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


class SentenceEncoder(nn.Module):
    """Padded rows to hidden states (B, S, D), and to a vector (B, D) of each row."""

    def __init__(self, encoder: nn.Module, pooling: Literal["mean", "cls"], normalizes: bool) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooling = pooling
        self.normalizes = normalizes
        self.vocab_size = count_tokens(encoder)

    def forward(self, **inputs: Tensor) -> tuple[Tensor, Tensor]:
        is_native = isinstance(self.encoder, PackedEncoder)
        hidden = self.encoder(**inputs)["last_hidden_state"] if is_native else call_foreign(self.encoder, inputs)
        if self.pooling == "cls":
            pooled = hidden[:, 0]
        else:
            weights = inputs["attention_mask"][..., None].to(hidden.dtype)
            pooled = (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0)
        return hidden, nn.functional.normalize(pooled, dim=-1) if self.normalizes else pooled


ExportedModel = MaskedLanguageModel | TaskModel | SentenceEncoder
_SPAN_OUTPUTS = ["start_logits", "end_logits"]
_SENTENCE_OUTPUTS = ["last_hidden_state", "sentence_embedding"]
_TASK_OUTPUTS: Mapping[type[Task], list[str]] = {
    QuestionAnswering: _SPAN_OUTPUTS,
    SpladeRetrieval: ["sparse_embedding"],
    LateRetrieval: ["token_embeddings"],
}


def find_output_names(model: ExportedModel) -> list[str]:
    """The names that other programs look for."""
    if isinstance(model, SentenceEncoder):
        return _SENTENCE_OUTPUTS
    task = model.task if isinstance(model, TaskModel) else None
    return next((names for kind, names in _TASK_OUTPUTS.items() if isinstance(task, kind)), ["logits"])


class PaddedModel(nn.Module):
    """A module with the graph's interface: padded rows to a tensor for each output name."""

    def __init__(self, model: ExportedModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        if isinstance(self.model, SentenceEncoder):
            hidden, vectors = self.model(**inputs)
            return hidden, vectors
        if isinstance(self.model, MaskedLanguageModel) and not isinstance(self.model.encoder, PackedEncoder):
            # The adapter that a foreign encoder is trained through looks into the batch, which a graph cannot.
            return (self.model.predict(call_foreign(self.model.encoder, inputs)),)
        logits: Tensor = self.model(**inputs)["logits"]
        return logits.unbind(dim=-1) if find_output_names(self.model) == _SPAN_OUTPUTS else (logits,)


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
                PaddedModel(model).eval(),
                kwargs=example,
                input_names=names,
                output_names=find_output_names(model),
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
_NUM_AXES_OF_TOKENS = 3
_MOST_ROWS = 7
_MOST_TOKENS_OF_MANY_ROWS = 128


@dataclass(frozen=True)
class Agreement:
    """The largest difference of outputs, and the inputs it was measured on."""

    largest_difference: float
    longest: int
    outputs: tuple[str, ...]

    def __str__(self) -> str:
        names, worst = " and ".join(self.outputs), self.largest_difference
        return (
            f"{names} differ from torch's by at most {worst:.1e}, seen on lengths 1 to {self.longest} in batches of 1"
            f" to {_MOST_ROWS}"
        )


def check_graph(path: Path, model: ExportedModel, max_length: int) -> Agreement:
    """Refuse a file that is not valid ONNX, has other names, gives NaN, or is far from torch.

    `model` is on the CPU and in evaluation mode.
    """
    onnx = import_package("onnx")
    try:
        onnx.checker.check_model(str(path))
    except onnx.checker.ValidationError as error:
        raise RunError(f"the exported graph is not valid ONNX: {str(error).splitlines()[0]}") from error
    session, names, outputs = _open_checked(path, model)
    longest = min(max_length, _LONGEST_CHECKED)
    in_torch = PaddedModel(model)
    worst = 0.0
    for inputs in build_inputs(names, model.vocab_size, longest):
        with torch.inference_mode():
            expected = in_torch(**{name: torch.from_numpy(values) for name, values in inputs.items()})
        for name, found, wanted in zip(outputs, session.run(outputs, dict(inputs)), expected, strict=True):
            worst = max(worst, _compare(name, found, wanted.numpy(), inputs))
    return Agreement(worst, longest, tuple(outputs))


def check_version(path: Path, model: ExportedModel, max_length: int) -> None:
    """Refuse a smaller version of a graph that has other names, or gives NaN or infinity."""
    session, names, outputs = _open_checked(path, model)
    for inputs in build_inputs(names, model.vocab_size, min(max_length, _LONGEST_CHECKED)):
        if not all(np.isfinite(found).all() for found in session.run(outputs, dict(inputs))):
            rows, length = inputs["input_ids"].shape
            raise RunError(
                f"{path.name} gives NaN or infinity on a batch of {rows} of length {length}, as fp16 does beyond"
                " 65,504; nothing was written, so export without this version"
            )


def _open_checked(path: Path, model: ExportedModel) -> tuple[Any, list[str], list[str]]:
    """A session, and the names of its inputs and outputs, which are those that other programs look for."""
    session = _open_session(path)
    names, outputs = find_input_names(model.encoder), find_output_names(model)
    for side, found, wanted in (("reads", session.get_inputs(), names), ("gives", session.get_outputs(), outputs)):
        if (given := [one.name for one in found]) != wanted:
            raise RunError(f"the exported graph {side} {', '.join(given)}; expected {', '.join(wanted)}")
    return session, names, outputs


def _compare(
    name: str, found: NDArray[np.float32], wanted: NDArray[np.float32], inputs: Mapping[str, NDArray[np.int64]]
) -> float:
    """The largest difference of one output, but for padding; one that is too large is an error."""
    rows, length = inputs["input_ids"].shape
    if not np.isfinite(found).all():
        raise RunError(f"the exported graph gives NaN or infinity on a batch of {rows} of length {length}")
    is_real = inputs["attention_mask"] != 0
    if found.ndim < _NUM_AXES_OF_TOKENS and name not in _SPAN_OUTPUTS:
        is_real = is_real.any(axis=1)
    difference = float(np.abs(found - wanted)[is_real].max())
    if not difference <= LARGEST_DIFFERENCE:
        raise RunError(
            f"the exported graph's {name} differ from torch's by {difference:.3g} on a batch of {rows} of length"
            f" {length}; at most {LARGEST_DIFFERENCE:g} is allowed, so nothing was written"
        )
    return difference


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
"""One array: logits (batch, length, vocabulary), those of a task, spans with both in the last axis, or vectors."""


def answer_with_torch(model: ExportedModel) -> Answer:
    """`model` is on the CPU and in evaluation mode."""
    padded = PaddedModel(model)

    @torch.inference_mode()
    def answer(inputs: Inputs) -> NDArray[np.float32]:
        tensors = {name: torch.from_numpy(values) for name, values in inputs.items()}
        return _join([tensor.numpy() for tensor in padded(**tensors)], find_output_names(model))

    return answer


def answer_with_onnx(path: Path) -> Answer:
    """On the CPU, with as many threads as torch has."""
    session = _open_session(path)
    names = [output.name for output in session.get_outputs()]

    def answer(inputs: Inputs) -> NDArray[np.float32]:
        return _join(session.run(names, dict(inputs)), names)

    return answer


def _join(outputs: Sequence[NDArray[np.float32]], names: list[str]) -> NDArray[np.float32]:
    return np.stack(outputs, axis=-1) if names == _SPAN_OUTPUTS else outputs[-1]


def _open_session(path: Path) -> Any:
    onnxruntime = import_package("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
