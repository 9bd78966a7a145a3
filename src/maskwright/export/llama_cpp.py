"""A model in the terms of llama.cpp: what it can run, its names of weights, and the keys of an encoder and a tokenizer.

llama.cpp has architectures for BERT and ModernBERT and tokenizers of its own. What it would compute or tokenize
otherwise is refused, except for its GELU, which is the tanh formula: vectors differ by that in the third decimal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from maskwright.errors import InputError
from maskwright.models.bert import BERT
from maskwright.models.distilbert import DistilBERT
from maskwright.models.encoder import PackedEncoder
from maskwright.models.modernbert import ModernBERT
from maskwright.models.roberta import RoBERTa, XLMRoBERTa
from maskwright.text.tokenizer.tokenizer import Tokenizer

Value = bool | int | float | str | list[str] | list[int]
_POOLINGS = {"mean": 1, "cls": 2}
_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5
"""Types of tokens."""
_WORD_START = "\u2581"
_GELUS = ("gelu", "gelu_new")
_LOCAL_ROPE_THETA = 10_000.0
"""llama.cpp has this one and no key for it."""


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


def name_architecture(encoder: PackedEncoder) -> str:
    return _ARCHITECTURES[type(encoder)].name


def describe_model(encoder: PackedEncoder, max_length: int, pooling: str, tokenizer: Tokenizer) -> dict[str, Value]:
    """The keys of a file that say what the encoder computes and how texts become ids."""
    return _describe_encoder(encoder, max_length, pooling) | _describe_tokenizer(tokenizer, encoder.vocab_size)


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
    name = name_architecture(encoder)
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
        "token_type": types,
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
    for ours, names in name_weights(encoder).items():
        found |= dict(zip(names, state[ours].chunk(len(names)), strict=True))
    if "position_embd.weight" in found:
        assert isinstance(encoder, BERT)
        found["position_embd.weight"] = found["position_embd.weight"][encoder.first_position :][:max_length]
    return {name: tensor.detach().cpu().float().numpy() for name, tensor in found.items()}


def name_weights(encoder: PackedEncoder) -> dict[str, tuple[str, ...]]:
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
