"""Tiny models for whole texts, as transformers writes them, with weights large enough for uneven answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from maskwright.text.tokenizer.tokenizer import Tokenizer

MAX_LENGTH = 24
_SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "initializer_range": 0.3,
    "max_position_embeddings": MAX_LENGTH,
}


def save_classifier(
    folder: Path, tokenizer: Tokenizer, classes: list[str], family: str = "Bert", **settings: Any
) -> Path:
    """The tokenizer's file says, as that of a published model does, whether the model wants segments."""
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{family}Config")(
        vocab_size=tokenizer.vocab_size,
        pad_token_id=tokenizer.pad_token_id,
        id2label=dict(enumerate(classes)),
        label2id={name: number for number, name in enumerate(classes)},
        **{**_SHAPE, **settings},
    )
    torch.manual_seed(0)
    getattr(transformers, f"{family}ForSequenceClassification")(config).save_pretrained(folder)
    tokenizer.save(folder)
    path = folder / "tokenizer_config.json"
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if family == "Bert" else [])]
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_input_names": names}))
    return folder
