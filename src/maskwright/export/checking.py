"""Whether an ONNX file computes what the model does, whatever the batch size and the lengths in it.

A model in torch and a file in onnxruntime are asked in one way: the same arrays in, logits out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from maskwright.errors import RunError
from maskwright.export.onnx_graph import OUTPUT_NAME, ExportedModel, import_package

LARGEST_DIFFERENCE = 1e-3
_LONGEST_CHECKED = 2048
"""Attention over longer rows would take gigabytes and minutes."""
_NUM_AXES_OF_WHOLE_TEXTS = 2
"""Logits of a classifier have no axis for the tokens."""
_MOST_ROWS = 7
_MOST_TOKENS_OF_MANY_ROWS = 128


@dataclass(frozen=True)
class Agreement:
    """How far logits are apart at most, and what inputs that was seen on."""

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
