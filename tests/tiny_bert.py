"""An encoder small enough to be trained or asked within seconds."""

from __future__ import annotations

from typing import Any

import torch

from maskwright.models.bert import BERT
from maskwright.text.tokenizer.tokenizer import Tokenizer


def build_tiny_bert(tokenizer: Tokenizer, **shape: Any) -> BERT:
    """Two layers of width 32 unless `shape` says otherwise, with the same weights at every call."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, **shape}
    return BERT.from_variant("tiny", vocab_size=tokenizer.vocab_size, **sizes)
