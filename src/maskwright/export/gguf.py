"""Export an encoder with its pooling to GGUF, the format of llama.cpp, and measure each version of it.

llama.cpp has architectures for BERT and ModernBERT and tokenizers of its own. What it would compute or tokenize
otherwise is refused, except for its GELU, which is the tanh formula: vectors differ by that in the third decimal.
"""

from __future__ import annotations

import copy
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from torch import Tensor, nn

from maskwright.errors import InputError, RunError
from maskwright.export.card import CardOptions, escape, format_figure, show_code
from maskwright.export.comparison import Sample, choose_sample
from maskwright.export.gguf_file import BLOCK, GGUFTensor, Number, Value, read_gguf, write_gguf
from maskwright.export.onnx_graph import SentenceEncoder
from maskwright.models.bert import BERT
from maskwright.models.distilbert import DistilBERT
from maskwright.models.encoder import PackedEncoder
from maskwright.models.layers import build_activation
from maskwright.models.modernbert import ModernBERT
from maskwright.models.roberta import RoBERTa, XLMRoBERTa
from maskwright.text.tokenizer.tokenizer import Tokenizer

FILES: dict[Number, str] = {"fp32": "model.gguf", "fp16": "model_fp16.gguf", "int8": "model_int8.gguf"}
Say = Callable[[str], None]
Embed = Callable[[nn.Module, Sequence[Sequence[int]]], NDArray[np.float32]]
"""Vectors of texts given by their ids, by an encoder."""
_FILE_TYPES: dict[Number, int] = {"fp32": 0, "fp16": 1, "int8": 7}
_POOLINGS = {"mean": 1, "cls": 2}
_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5
"""Types of tokens."""
_WORD_START = "\u2581"
_GELUS = ("gelu", "gelu_new")
_LOCAL_ROPE_THETA = 10_000.0
"""llama.cpp has this one and no key for it."""
_SMALLEST_COSINE = {"fp32": 0.999, "fp16": 0.999, "int8": 0.95}
"""Of a text's vector with ours: less is a mistake in the file, not its numbers."""


@dataclass(frozen=True)
class _Architecture:
    name: str
    modules: Mapping[str, str]
    """llama.cpp's names by ours."""
    layer_modules: Mapping[str, tuple[str, ...]]
    """Several where ours stacks theirs."""


_BERT = _Architecture(
    "bert",
    {
        "embeddings.word": "token_embd",
        "embeddings.position": "position_embd",
        "embeddings.token_type": "token_types",
        "embeddings.norm": "token_embd_norm",
    },
    {
        "attention.qkv": ("attn_q", "attn_k", "attn_v"),
        "attention.output": ("attn_output",),
        "attention_norm": ("attn_output_norm",),
        "up": ("ffn_up",),
        "down": ("ffn_down",),
        "feed_forward_norm": ("layer_output_norm",),
    },
)
_MODERN_BERT = _Architecture(
    "modern-bert",
    {"word": "token_embd", "embedding_norm": "token_embd_norm", "final_norm": "output_norm"},
    {
        "attention_norm": ("attn_norm",),
        "attention.qkv": ("attn_qkv",),
        "attention.output": ("attn_output",),
        "feed_forward_norm": ("ffn_norm",),
        "up": ("ffn_up",),
        "down": ("ffn_down",),
    },
)
_ARCHITECTURES: dict[type[nn.Module], _Architecture] = {
    **dict.fromkeys((BERT, DistilBERT, RoBERTa, XLMRoBERTa), _BERT),
    ModernBERT: _MODERN_BERT,
}
_NOT_ENCODED = ("position_embd", "token_types")
"""Tables that llama.cpp reads in fp32 alone."""


@dataclass(frozen=True)
class GGUFFigures:
    size_bytes: int
    mean_cosine: float
    """Of a text's vector, computed from the file's weights with llama.cpp's GELU, with the pipeline's."""
    smallest_cosine: float
    largest_difference: float


def refuse_for_gguf(encoder: nn.Module, tokenizer: Tokenizer) -> None:
    """Refuse what llama.cpp would compute or tokenize otherwise, with all reasons."""
    reasons = [*_find_encoder_obstacles(encoder), *_find_tokenizer_obstacles(tokenizer)]
    if reasons:
        raise InputError(f"llama.cpp cannot run this model from GGUF: {'; '.join(reasons)}")


def _find_encoder_obstacles(encoder: nn.Module) -> list[str]:
    if type(encoder) not in _ARCHITECTURES:
        known = ", ".join(one.__name__ for one in _ARCHITECTURES)
        return [f"it has no architecture for {type(encoder).__name__}; known are {known}"]
    assert isinstance(encoder, PackedEncoder)
    config = encoder.config
    has_local = isinstance(encoder, ModernBERT)
    theta = config.local_rope_theta if has_local else _LOCAL_ROPE_THETA
    checks = {
        f"its activation is {encoder.activation}, theirs is gelu": encoder.activation not in _GELUS,
        "its norms are rms_norm": getattr(config, "normalization_type", "layer_norm") != "layer_norm",
        "its norms have biases": has_local and config.norm_bias,
        f"its local_rope_theta is {theta:g}, theirs is {_LOCAL_ROPE_THETA:g}": theta != _LOCAL_ROPE_THETA,
    }
    return [reason for reason, applies in checks.items() if applies]


def _find_tokenizer_obstacles(tokenizer: Tokenizer) -> list[str]:
    described = json.loads(tokenizer.backend.to_str())
    normalizer, pieces = described["normalizer"] or {}, described["pre_tokenizer"] or {}
    if tokenizer.kind == "WordPiece":
        is_berts = normalizer.get("type") == "BertNormalizer" and pieces.get("type") == "BertPreTokenizer"
        is_usual = all(normalizer.get(name) for name in ("clean_text", "handle_chinese_chars"))
        if is_berts and is_usual and described["model"]["continuing_subword_prefix"] == "##":
            return []
        return ["its WordPiece tokenizer splits and cleans text otherwise than BERT's"]
    if tokenizer.kind != "BPE":
        return [f"its tokenizer is {tokenizer.kind}; WordPiece and byte-level BPE can be written"]
    if pieces.get("type") != "ByteLevel" or pieces["add_prefix_space"] or not pieces["use_regex"]:
        return ["its BPE tokenizer splits text otherwise than GPT-2's"]
    if normalizer and normalizer.get("type") != "NFC":
        return [f"its byte-level BPE tokenizer changes texts first ({normalizer['type']}), which theirs cannot"]
    return []


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
        "general.architecture": _ARCHITECTURES[type(encoder)].name,
        "general.name": name,
        **({} if card.license is None else {"general.license": card.license}),
        **({} if card.language is None else {"general.languages": [card.language]}),
        **_describe_encoder(encoder, max_length, model.pooling),
        **_describe_tokenizer(tokenizer, encoder.vocab_size),
    }
    folder.mkdir(parents=True, exist_ok=True)
    weights = list_weights(encoder, max_length)
    sample = choose_sample(texts, tokenizer, encoder, max_length)
    expected = embed(encoder, sample.rows)
    figures: dict[Number, GGUFFigures] = {}
    chosen: dict[Number, bool] = {"fp32": True, "fp16": fp16, "int8": int8}
    for number in (number for number, is_asked in chosen.items() if is_asked):
        path = folder / FILES[number]
        settings = {"general.file_type": _FILE_TYPES[number], "general.quantization_version": 2}
        tensors = [GGUFTensor(one, values, _choose_number(one, values, number)) for one, values in weights.items()]
        write_gguf(path, {**keys, **settings}, tensors)
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


def _describe_encoder(encoder: PackedEncoder, max_length: int, pooling: str) -> dict[str, Value]:
    config = encoder.config
    values: dict[str, Value] = {
        "context_length": max_length,
        "embedding_length": encoder.hidden_size,
        "block_count": int(config.num_hidden_layers),
        "feed_forward_length": int(config.intermediate_size),
        "vocab_size": encoder.vocab_size,
        "attention.head_count": int(config.num_attention_heads),
        "attention.layer_norm_epsilon": encoder.norm_eps,
        "attention.causal": False,
        "pooling_type": _POOLINGS[pooling],
    }
    if isinstance(encoder, ModernBERT):
        values |= {
            "attention.sliding_window": int(config.local_attention),
            "attention.sliding_window_pattern": int(config.global_attn_every_n_layers),
            "rope.freq_base": float(config.global_rope_theta),
            "rope.freq_base_swa": float(config.local_rope_theta),
            "rope.scaling.type": "none",
        }
    name = _ARCHITECTURES[type(encoder)].name
    return {f"{name}.{key}": value for key, value in values.items()} | {
        "tokenizer.ggml.token_type_count": max(1, int(getattr(config, "type_vocab_size", 1)))
    }


def _describe_tokenizer(tokenizer: Tokenizer, vocab_size: int) -> dict[str, Value]:
    described = json.loads(tokenizer.backend.to_str())
    is_wordpiece = tokenizer.kind == "WordPiece"
    tokens, types = _list_tokens(tokenizer, vocab_size, is_wordpiece)
    values: dict[str, Value] = {
        "model": "bert" if is_wordpiece else "gpt2",
        "pre": "default" if is_wordpiece else "gpt-2",
        "tokens": tokens,
        "token_type": np.array(types, np.int32),
        "bos_token_id": tokenizer.cls_token_id,
        "eos_token_id": tokenizer.sep_token_id,
        "cls_token_id": tokenizer.cls_token_id,
        "seperator_token_id": tokenizer.sep_token_id,  # as they spell it
        "unknown_token_id": tokenizer.unk_token_id,
        "padding_token_id": tokenizer.pad_token_id,
        "mask_token_id": tokenizer.mask_token_id,
        "add_bos_token": True,
        "add_eos_token": True,
    }
    if is_wordpiece:
        lowers = bool(described["normalizer"]["lowercase"])
        strips = described["normalizer"]["strip_accents"]
        values |= {"normalizer.lowercase": lowers, "normalizer.strip_accents": lowers if strips is None else strips}
    else:
        merges = described["model"]["merges"]
        values["merges"] = [one if isinstance(one, str) else " ".join(one) for one in merges]
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()}


def _list_tokens(tokenizer: Tokenizer, vocab_size: int, is_wordpiece: bool) -> tuple[list[str], list[int]]:
    """Tokens and their types by id. WordPiece marks begins of words, where BERT's vocabulary marks the others."""
    backend = tokenizer.backend
    tokens, types = [f"[PAD{number}]" for number in range(vocab_size)], [_UNUSED] * vocab_size
    special, added = {*tokenizer.all_special_ids}, backend.get_added_tokens_decoder()
    for token, number in backend.get_vocab(with_added_tokens=True).items():
        if number in special:
            types[number] = _CONTROL
        else:
            types[number] = _USER_DEFINED if number in added else _NORMAL
            if is_wordpiece and number not in added:
                token = token[2:] if token.startswith("##") else f"{_WORD_START}{token}"
        tokens[number] = token
    return tokens, types


def list_weights(encoder: PackedEncoder, max_length: int) -> dict[str, NDArray[np.float32]]:
    """Weights by llama.cpp's names."""
    state, found = encoder.state_dict(), dict[str, Tensor]()
    for ours, names in _name_weights(encoder).items():
        found |= dict(zip(names, state[ours].chunk(len(names)), strict=True))
    if "position_embd.weight" in found:
        assert isinstance(encoder, BERT)
        found["position_embd.weight"] = found["position_embd.weight"][encoder.first_position :][:max_length]
    return {name: tensor.detach().cpu().float().numpy() for name, tensor in found.items()}


def _name_weights(encoder: PackedEncoder) -> dict[str, tuple[str, ...]]:
    """llama.cpp's names of each weight of the encoder."""
    architecture, places = _ARCHITECTURES[type(encoder)], dict[str, tuple[str, ...]]()
    for name in encoder.state_dict():
        module, _, kind = name.rpartition(".")
        if module.startswith("layers."):
            _, number, part = module.split(".", 2)
            names = tuple(f"blk.{number}.{one}" for one in architecture.layer_modules[part])
        else:
            names = (architecture.modules[module],)
        places[name] = tuple(f"{one}.{kind}" for one in names)
    return places


def _choose_number(name: str, values: NDArray[np.float32], number: Number) -> Number:
    if values.ndim == 1 or name.startswith(_NOT_ENCODED):
        return "fp32"
    return "fp16" if number == "int8" and values.shape[1] % BLOCK else number


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
    _, found = read_gguf(path)
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
    for name, places in _name_weights(encoder).items():
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
