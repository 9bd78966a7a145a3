"""Export an encoder with its pooling to GGUF, the format of llama.cpp, and measure each version of it."""

from __future__ import annotations

import copy
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from torch import nn

from maskwright.errors import InputError, RunError
from maskwright.export.card import CardOptions, escape, format_figure, show_code
from maskwright.export.comparison import Sample, choose_sample
from maskwright.export.llama_cpp import Value, describe_model, list_weights, name_architecture, name_weights
from maskwright.export.onnx_graph import SentenceEncoder
from maskwright.models.bert import BERT
from maskwright.models.encoder import PackedEncoder
from maskwright.models.layers import build_activation
from maskwright.text.tokenizer.tokenizer import Tokenizer

Number = Literal["fp32", "fp16", "int8"]
Arrays = Mapping[str, NDArray[np.float32]]
FILES: dict[Number, str] = {"fp32": "model.gguf", "fp16": "model_fp16.gguf", "int8": "model_int8.gguf"}
Say = Callable[[str], None]
Embed = Callable[[nn.Module, Sequence[Sequence[int]]], NDArray[np.float32]]
"""Vectors of texts given by their ids, by an encoder."""
_TYPES: dict[Number, tuple[str, str]] = {
    "fp32": ("ALL_F32", "F32"),
    "fp16": ("MOSTLY_F16", "F16"),
    "int8": ("MOSTLY_Q8_0", "Q8_0"),
}
"""ggml's names of the file's type and of its matrices'."""
_BLOCK = 32
"""Numbers that share a scale in int8."""
_SMALLEST_COSINE = {"fp32": 0.999, "fp16": 0.999, "int8": 0.95}
"""Of a text's vector with ours: less is a mistake in the file, not its numbers."""
_NOT_ENCODED = ("position_embd", "token_types")
"""Tables that llama.cpp reads in fp32 alone."""


@dataclass(frozen=True)
class GGUFFigures:
    size_bytes: int
    mean_cosine: float
    """Of a text's vector, computed from the file's weights with llama.cpp's GELU, with the pipeline's."""
    smallest_cosine: float
    largest_difference: float


def check_can_export() -> None:
    if find_spec("gguf") is None:
        raise InputError("GGUF export needs gguf; run: pip install 'maskwright[export]'")


def export_gguf(
    model: SentenceEncoder,
    tokenizer: Tokenizer,
    folder: Path,
    name: str,
    *,
    int8: bool = False,
    fp16: bool = False,
    max_length: int,
    texts: Sequence[str],
    embed: Embed,
    card: CardOptions,
    say: Say,
) -> dict[str, Any]:
    """Write `model.gguf` (and those in int8 and fp16) into `folder`, read them back and measure them; the figures.

    The files hold the positions of `max_length` tokens: llama.cpp has no other limit for the length of a text.
    """
    encoder = model.encoder
    assert isinstance(encoder, PackedEncoder)
    if "NFC" in str(tokenizer.backend.normalizer):
        say("its tokenizer composes characters first (Unicode's NFC), which llama.cpp does not; do so with your texts")
    keys = {
        "general.name": name,
        **({} if card.license is None else {"general.license": card.license}),
        **({} if card.language is None else {"general.languages": [card.language]}),
        **describe_model(encoder, max_length, model.pooling, tokenizer),
    }
    folder.mkdir(parents=True, exist_ok=True)
    weights = list_weights(encoder, max_length)
    sample = choose_sample(texts, tokenizer, encoder, max_length)
    expected = embed(encoder, sample.rows)
    figures: dict[Number, GGUFFigures] = {}
    chosen: dict[Number, bool] = {"fp32": True, "fp16": fp16, "int8": int8}
    for number in (number for number, is_asked in chosen.items() if is_asked):
        path = folder / FILES[number]
        _write(path, name_architecture(encoder), keys, weights, number)
        figures[number] = _measure(path, encoder, weights, number, expected, embed, sample)
        one = figures[number]
        say(
            f"{path.name}: {one.size_bytes / 1e6:,.1f} MB, cosines with our vectors of {len(sample.rows)} texts"
            f" {one.mean_cosine:.6f} (mean) and {one.smallest_cosine:.6f} (smallest)"
        )
    return {
        "max_length": max_length,
        "pooling": model.pooling,
        "num_texts": len(sample.rows),
        "versions": {FILES[number]: asdict(one) for number, one in figures.items()},
    }


def _write(path: Path, architecture: str, keys: Mapping[str, Value], weights: Arrays, number: Number) -> None:
    from gguf import GGML_QUANT_VERSION, GGMLQuantizationType, GGUFWriter, LlamaFileType
    from gguf.quants import quantize

    file_type, _ = _TYPES[number]
    writer = GGUFWriter(path, architecture)
    writer.add_file_type(LlamaFileType[file_type])
    writer.add_quantization_version(GGML_QUANT_VERSION)
    add: dict[type, Callable[[str, Any], None]] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    for key, value in keys.items():
        add[type(value)](key, value)
    for name, values in weights.items():
        _, kind = _TYPES[_choose_number(name, values, number)]
        writer.add_tensor(name, quantize(values, GGMLQuantizationType[kind]), raw_dtype=GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _choose_number(name: str, values: NDArray[np.float32], number: Number) -> Number:
    if values.ndim == 1 or name.startswith(_NOT_ENCODED):
        return "fp32"
    return "fp16" if number == "int8" and values.shape[1] % _BLOCK else number


def read_tensors(path: Path) -> dict[str, NDArray[np.float32]]:
    """The tensors of a file as numbers, whatever they were encoded in."""
    from gguf import GGUFReader
    from gguf.quants import dequantize

    return {
        str(one.name): dequantize(one.data, one.tensor_type).reshape(one.shape[::-1]).copy()
        for one in GGUFReader(path).tensors
    }


def _measure(
    path: Path,
    encoder: PackedEncoder,
    weights: Mapping[str, NDArray[np.float32]],
    number: Number,
    expected: NDArray[np.float32],
    embed: Embed,
    sample: Sample,
) -> GGUFFigures:
    """Read a file back, and compare the vectors that it gives with llama.cpp's GELU."""
    found = read_tensors(path)
    if found.keys() != weights.keys() or (
        number == "fp32" and not all(np.array_equal(found[name], weights[name]) for name in weights)
    ):
        raise RunError(f"{path.name} holds other weights than the model; nothing was written")
    vectors = embed(_rebuild(encoder, found), sample.rows)
    cosines = (_normalize(vectors) * _normalize(expected)).sum(axis=-1)
    if not cosines.min() >= _SMALLEST_COSINE[number]:
        raise RunError(
            f"the vectors of {path.name} are not the model's: a cosine of {cosines.min():.4f} is below"
            f" {_SMALLEST_COSINE[number]:g}; nothing was written"
        )
    difference = float(np.abs(vectors - expected).max())
    return GGUFFigures(path.stat().st_size, float(cosines.mean()), float(cosines.min()), difference)


@torch.no_grad()
def _rebuild(encoder: PackedEncoder, found: Mapping[str, NDArray[np.float32]]) -> PackedEncoder:
    """The encoder with weights of a file and llama.cpp's GELU."""
    copied = copy.deepcopy(encoder)
    for name, places in name_weights(encoder).items():
        rows = torch.from_numpy(np.concatenate([found[place] for place in places]))
        begin = copied.first_position if isinstance(copied, BERT) and places == ("position_embd.weight",) else 0
        copied.state_dict()[name][begin : begin + len(rows)].copy_(rows)
    for layer in copied.layers:
        layer.activation = build_activation("gelu_new")
    return copied


def _normalize(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))


def build_gguf_card(
    name: str, model: SentenceEncoder, facts: Mapping[str, str], figures: Mapping[str, Any], card: CardOptions
) -> str:
    """`name` is what the folder will be called; `facts` are further sections by their headings."""
    family, num_parameters = type(model.encoder).__name__, sum(one.numel() for one in model.encoder.parameters())
    values: dict[str, Any] = {key: value for key, value in asdict(card).items() if value is not None}
    values |= {"pipeline_tag": "feature-extraction", "tags": ["maskwright", "gguf", family.lower()]}
    path = f"{name}/{next(iter(figures['versions']))}"
    python = (
        "from llama_cpp import Llama\n\n"
        f"model = Llama({path!r}, embedding=True)\n"
        'print(len(model.embed("This is a text.")))'
    )
    shell = f'```sh\nllama-embedding -m {shlex.quote(path)} -p "This is a text."\n```'
    versions = figures["versions"]
    rows = [
        f"| `{version}` | {one['size_bytes'] / 1e6:,.1f} MB |"
        f" {format_figure(one['mean_cosine'])} | {format_figure(one['smallest_cosine'])} |"
        for version, one in versions.items()
    ]
    head = "| file | size | mean cosine | smallest cosine |\n| --- | --- | --- | --- |"
    normalizes = (
        "" if model.normalizes else " The model's own vectors keep their length; llama.cpp's tools scale them to 1."
    )
    sections = [
        f"---\n{yaml.safe_dump(values, sort_keys=False)}---",
        f"# {escape(name)}",
        f"A {family} encoder of {num_parameters:,} parameters that turns a text into a vector (pooling:"
        f" {model.pooling}), for llama.cpp. Made with Maskwright.",
        f"## How to use\n\n{shell}\n\n{show_code(python)}",
        *(f"## {heading}\n\n{text}" for heading, text in facts.items()),
        f"## Versions\n\n{head}\n" + "\n".join(rows) + "\n\nCosines are with the vectors of Maskwright, computed from"
        " the file's weights with llama.cpp's GELU, which is an approximation.",
        f"## Limits\n\n- Texts of at most {figures['max_length']:,} tokens;"
        f" longer ones have to be cut.{normalizes}\n"
        "- It knows the language and the subjects of its training data, errors and prejudices included. What is not in"
        " this card was not measured.",
    ]
    return "\n\n".join(sections) + "\n"
