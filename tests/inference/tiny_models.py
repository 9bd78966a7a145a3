"""The size of tiny models with weights large enough for uneven answers, and their folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from maskwright.text.tokenizer.tokenizer import Tokenizer
from tolerances import count_terms, rounding

SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "initializer_range": 0.3,
}
MAX_LENGTH = 24
NUM_TERMS = count_terms(num_layers=2, width=32, length=80)
SCORE_ERROR = rounding(NUM_TERMS, magnitude=0.3 * 32**0.5)
"""Of a probability, which moves by less than its logits; `width` terms of the initial weights' size make a logit."""


def save(model: Any, tokenizer: Tokenizer, folder: Path) -> Path:
    model.save_pretrained(folder)
    tokenizer.save(folder)
    return folder
