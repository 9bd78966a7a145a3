"""fastembed, with the ONNX folder as a model of one's own."""

from __future__ import annotations

import tempfile
from importlib.metadata import version
from typing import Any

import numpy as np
from asking import answer_all
from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType

FILES = {"fp32": "model.onnx", "fp16": "model_fp16.onnx", "q8": "model_int8.onnx"}


def ask(model: dict[str, Any], variant: str) -> list[Any] | None:
    if model["kind"] != "embed":
        return None
    name = f"{model['model']}-{variant}"
    width = len(model["answers"][0])
    TextEmbedding.add_custom_model(
        model=name,
        pooling=PoolingType.MEAN,
        normalization=False,
        sources=ModelSource(hf=name),
        dim=width,
        model_file=FILES[variant],
    )
    with tempfile.TemporaryDirectory() as cache:
        opened = TextEmbedding(name, cache_dir=cache, specific_model_path=model["onnx"])
        return np.stack(list(opened.embed(model["questions"]))).tolist()


for variant in FILES:
    answer_all(lambda model, variant=variant: ask(model, variant), version("fastembed"), variant)
