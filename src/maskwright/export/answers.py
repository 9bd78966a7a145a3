"""One way to ask a model in torch and an ONNX file in onnxruntime: the same arrays in, logits out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from maskwright.export.onnx_graph import OUTPUT_NAME, ExportedModel, import_package

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
