"""Perplexity of a model on a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

from torch import Tensor

from maskwright.batch import PackedBatch
from maskwright.errors import InputError
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.training.batches import iterate_batches
from maskwright.training.held_out import evaluate


def calculate_perplexity(
    mlm_model: MaskedLanguageModel,
    dataset: Iterable[PackedBatch | Mapping[str, Tensor]],
    num_batches: int | None = 100,
) -> float:
    """exp(mean loss) over the masked tokens of up to `num_batches` batches (None: all).

    It is the perplexity of final.json and of `maskwright eval MODEL mlm`: fixed masks on 15% of single tokens,
    whatever the ratio and the strategy of training, so the figures of models compare. A causal model is asked for
    every next token instead.
    """
    if num_batches is not None and num_batches < 1:
        raise InputError(f"num_batches is {num_batches}; it must be at least 1, or None for all")
    batches = islice(iterate_batches(dataset), num_batches)
    return evaluate(mlm_model, batches).perplexity
