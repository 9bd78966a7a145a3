"""The small files beside a model that tell sentence-transformers how its tokens become one vector.

They have the older names and keys, which version 6 still reads, and without a warning.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from maskwright.storage import write_text

SentencePooling = Literal["mean", "cls"]
_POOLING_FOLDER = "1_Pooling"
_MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": _POOLING_FOLDER, "type": "sentence_transformers.models.Pooling"},
]
_THEIR_POOLINGS = {"mean": "mean_tokens", "cls": "cls_token"}
_OTHER_POOLINGS = ("max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")


def describe_pooling(width: int, pooling: SentencePooling, max_length: int | None) -> dict[str, Any]:
    """The content of each file, by its name in the model's folder; `max_length` counts the special tokens too."""
    modes = {f"pooling_mode_{theirs}": pooling == ours for ours, theirs in _THEIR_POOLINGS.items()}
    modes |= {f"pooling_mode_{name}": False for name in _OTHER_POOLINGS}
    return {
        "modules.json": _MODULES,
        f"{_POOLING_FOLDER}/config.json": {"word_embedding_dimension": width, **modes, "include_prompt": True},
        "sentence_bert_config.json": {"max_seq_length": max_length, "do_lower_case": False},
        "config_sentence_transformers.json": {
            "model_type": "SentenceTransformer",
            "prompts": {},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
    }


def write_small_files(folder: Path, files: Mapping[str, Any]) -> None:
    """Each as JSON under its name in the folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(content, indent=2) + "\n")
