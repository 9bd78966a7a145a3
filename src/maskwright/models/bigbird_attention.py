"""BigBird of `transformers` chooses its attention by the length of the batch, and by nothing else.

By itself it changes to full attention at the first batch that is too short for blocks and never changes back, so that
what it computes would depend on the batches before, and a run that is resumed would differ from an unbroken one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

_BLOCK_SPARSE, _FULL = "block_sparse", "original_full"


def choose_attention_by_length(encoder: nn.Module) -> None:
    """Set the attention before every call, where the encoder is a BigBird with sparse attention."""
    config: Any = encoder.config
    if config.model_type == "big_bird" and config.attention_type == _BLOCK_SPARSE:
        encoder.register_forward_pre_hook(_set_attention, with_kwargs=True)


def _set_attention(encoder: Any, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    input_ids = named["input_ids"] if "input_ids" in named else arguments[0]
    config = encoder.config
    # Two global, three sliding and the random blocks, and as many random ones to spare (Zaheer et al. 2020).
    longest_full = (5 + 2 * config.num_random_blocks) * config.block_size
    attention_type = _FULL if input_ids.shape[1] <= longest_full else _BLOCK_SPARSE
    if attention_type != encoder.attention_type:
        with torch.random.fork_rng(devices=[]):  # it draws weights that it then replaces by the old ones
            encoder.set_attention_type(attention_type)
