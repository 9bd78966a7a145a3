"""One held-out sentence as it is, and as the model will see it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from maskwright.data.loader import PackedLoader
from maskwright.inference.visualize import split_text
from maskwright.runs.model import TrainedModel
from maskwright.text.tokenizer import Tokenizer

_READABLE_LENGTH = 24
"""Tokens of a sentence that is read at a glance."""


@dataclass(frozen=True)
class MaskedExample:
    """One piece of text to each token, the space before a word being part of its piece."""

    original: list[str]
    seen: list[str]
    selected: list[bool]
    """Where the model has to answer: masked, replaced by a random token, or left as it is."""


def build_example(model: TrainedModel, tokenizer: Tokenizer, held_out: PackedLoader, seed: int) -> MaskedExample:
    """The sample of the most readable length under the masking of a run's first epoch; the model is on the CPU."""
    sample = int(np.argmin(np.abs(held_out.samples.lengths - _READABLE_LENGTH)))
    batch = held_out.build_batch([[sample]])
    corrupted = model.corrupt(batch, seed, 0)
    ids = batch.input_ids[0]
    is_shown = ~batch.is_padding[0] & (ids != tokenizer.cls_token_id) & (ids != tokenizer.sep_token_id)
    return MaskedExample(
        original=split_text(tokenizer, ids[is_shown].tolist()),
        seen=split_text(tokenizer, corrupted.batch.input_ids[0][is_shown].tolist()),
        selected=corrupted.selected[0][is_shown].tolist(),
    )
