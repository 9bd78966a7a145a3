"""What a language model predicts at chosen places of texts. M places, V vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from maskwright.batch import PackedBatch
from maskwright.errors import RunError
from maskwright.inference.runner import EncodedBatch, RowShape, Sample, run_packed
from maskwright.objectives.masked_lm import MaskedLanguageModel

Ids = NDArray[np.int64]
_MAX_ANSWERS = 2_048
"""At a time: each takes a row of logits as long as the vocabulary."""
_OWN_ROWS = RowShape(least=1, multiple=1)
"""A text's masked copies are all as long as the text, and rows that short cost less attention than longer ones."""


@dataclass(frozen=True)
class AskedPlaces(Sample):
    """Token ids with some places that are asked about, counted in the ids, and the tokens that stand there."""

    places: Ids = field(kw_only=True)
    labels: Ids = field(kw_only=True)


def score_answers(
    model: MaskedLanguageModel,
    pad_token_id: int,
    samples: Iterable[AskedPlaces],
    score: Callable[[Tensor, Tensor], Tensor],
) -> Iterator[NDArray[np.float64]]:
    """The scores (M,) of each sample's places, in order: `score` takes logits (M, V) and labels (M,).

    Some models answer one place earlier; a causal one sees what comes before the place, any other the whole text.
    """
    shift = int(model.predicts_next or model.evaluates_causally)

    def reduce(batch: EncodedBatch[AskedPlaces]) -> list[NDArray[np.float64]]:
        slots = batch.take([sample.places - shift for sample in batch.samples])
        labels = torch.from_numpy(np.concatenate([sample.labels for sample in batch.samples])).to(slots.device)
        parts = zip(slots.split(_MAX_ANSWERS), labels.split(_MAX_ANSWERS), strict=True)
        scores = torch.cat([score(model.predict(part).float(), wanted) for part, wanted in parts]).cpu().double()
        return np.split(scores.numpy(), np.cumsum([len(sample.places) for sample in batch.samples])[:-1])

    def see_before(batch: PackedBatch) -> Tensor | None:
        return torch.ones_like(batch.input_ids, dtype=torch.bool) if model.evaluates_causally else None

    return run_packed(
        model.encoder,
        samples,
        reduce,
        pad_token_id=pad_token_id,
        model=model,
        row_shape=_OWN_ROWS,
        find_causal=see_before,
    )


def check_finite(values: NDArray[np.float64]) -> None:
    """A model whose weights broke down answers NaN, which no table should hide."""
    if not np.isfinite(values).all():
        raise RunError("the model gives scores that are not finite, so its weights are damaged; use another checkpoint")
