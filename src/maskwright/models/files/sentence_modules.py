"""The small files that make a model folder one of sentence-transformers: its modules, and how they pool and compare."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from maskwright.models.files.model_folder import MODULES_FILE

SentencePooling = Literal["mean", "cls"]
_POOLING_FOLDER = "1_Pooling"
_MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": _POOLING_FOLDER, "type": "sentence_transformers.models.Pooling"},
]
_NORMALIZE = {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
_THEIR_POOLINGS = {"mean": "mean_tokens", "cls": "cls_token"}
_OTHER_POOLINGS = ("max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")


def describe_pooling(
    width: int, pooling: SentencePooling, max_length: int | None, normalizes: bool = False
) -> dict[str, Any]:
    """The content of each file, by its name in the model's folder; `max_length` counts the special tokens too."""
    modes = {f"pooling_mode_{theirs}": pooling == ours for ours, theirs in _THEIR_POOLINGS.items()}
    modes |= {f"pooling_mode_{name}": False for name in _OTHER_POOLINGS}
    return {
        MODULES_FILE: [*_MODULES, _NORMALIZE] if normalizes else _MODULES,
        f"{_POOLING_FOLDER}/config.json": {"word_embedding_dimension": width, **modes, "include_prompt": True},
        "sentence_bert_config.json": {"max_seq_length": max_length, "do_lower_case": False},
        "config_sentence_transformers.json": {
            "model_type": "SentenceTransformer",
            "prompts": {},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
    }


_SPLADE_FOLDER = "1_SpladePooling"
_SPARSE = "sentence_transformers.sparse_encoder.models"
_SPARSE_MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": f"{_SPARSE}.MLMTransformer"},
    {"idx": 1, "name": "1", "path": _SPLADE_FOLDER, "type": f"{_SPARSE}.SpladePooling"},
]


def describe_splade(num_tokens: int, max_length: int, prompts: Mapping[str, str]) -> dict[str, Any]:
    """The same of a sparse encoder with a weight for each token of its vocabulary."""
    pooling = {"pooling_strategy": "max", "activation_function": "relu", "word_embedding_dimension": num_tokens}
    return {
        MODULES_FILE: _SPARSE_MODULES,
        f"{_SPLADE_FOLDER}/config.json": pooling,
        "sentence_bert_config.json": {"max_seq_length": max_length, "do_lower_case": False},
        "config_sentence_transformers.json": {
            "model_type": "SparseEncoder",
            "prompts": dict(prompts),
            "default_prompt_name": None,
            "similarity_fn_name": "dot",
        },
    }


_DENSE_FOLDER = "1_Dense"
_LATE_MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": _DENSE_FOLDER, "type": "pylate.models.Dense.Dense"},
]


def describe_late(
    width: int,
    projected: int,
    max_length: int,
    query_length: int | None,
    skipped: Iterable[str],
    prompts: Mapping[str, str],
) -> dict[str, Any]:
    """The same of an encoder with a vector for each token, `projected` from the encoder's `width`.

    As PyLate saves them, which the MultiVectorEncoder of sentence-transformers reads too. Prefixes are PyLate's own
    tokens before a text, and not the prompts.
    """
    return {
        MODULES_FILE: _LATE_MODULES,
        f"{_DENSE_FOLDER}/config.json": {
            "in_features": width,
            "out_features": projected,
            "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
            "use_residual": False,
        },
        "sentence_bert_config.json": {"max_seq_length": max_length, "do_lower_case": False},
        "config_sentence_transformers.json": {
            "model_type": "ColBERT",
            "prompts": dict(prompts),
            "default_prompt_name": None,
            "similarity_fn_name": "MaxSim",
            "query_prefix": "",
            "document_prefix": "",
            "query_length": query_length or max_length,
            "document_length": max_length,
            "do_query_expansion": query_length is not None,
            "attend_to_expansion_tokens": query_length is not None,
            "skiplist_words": list(skipped),
        },
    }
