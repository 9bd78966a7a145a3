"""Predictions of a language model at chosen positions of texts, or under the evaluation's fixed masks.

M positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from maskwright.batch import PackedBatch
from maskwright.errors import InputError, RunError
from maskwright.inference.layout import EncodedBatch, Reduction, RowShape, Sample
from maskwright.inference.runner import run_packed
from maskwright.models.any_encoder import encode
from maskwright.objectives.loss import as_sum, gather_labelled
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.training.compute.device import evaluation_mode
from maskwright.training.held_out import EVALUATION_RATIO, EVALUATION_SEED

Ids = NDArray[np.int64]
_MAX_ANSWERS = 2_048
"""At a time: each takes a row of logits as long as the vocabulary."""
_OWN_ROWS = RowShape(least=1, multiple=1)
"""A text's masked copies are all as long as the text, and rows that short cost less attention than longer ones."""


@dataclass
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

    def reduce(batch: EncodedBatch[AskedPlaces]) -> Reduction:
        slots = batch.take([sample.places - shift for sample in batch.samples])
        labels = batch.send(np.concatenate([sample.labels for sample in batch.samples]))
        parts = zip(slots.split(_MAX_ANSWERS), labels.split(_MAX_ANSWERS), strict=True)
        scores = torch.cat([score(model.predict(part).float(), wanted) for part, wanted in parts])
        ends = np.cumsum([len(sample.places) for sample in batch.samples])[:-1]
        return Reduction((scores,), lambda found: np.split(found.cpu().double().numpy(), ends))

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
    """Refuse NaN, which a model with broken weights gives."""
    if not np.isfinite(values).all():
        raise RunError("the model gives scores that are not finite, so its weights are damaged; use another checkpoint")


Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SampleScores:
    """Sums over the questions of each sample that has some, in the order of sample numbers."""

    loss_sums: Floats
    num_correct: Floats
    num_questions: Floats


@torch.no_grad()
def score_samples(model: MaskedLanguageModel, batches: Iterable[PackedBatch]) -> SampleScores:
    """The questions of `training.evaluate.evaluate`, with their answers added up by sample."""
    device = next(model.parameters()).device
    parts: list[tuple[Floats, ...]] = []
    with evaluation_mode(model):
        for batch in batches:
            asked = model.corrupt_for_evaluation(batch.to(device), EVALUATION_SEED, EVALUATION_RATIO)
            hidden = encode(model.encoder, asked.batch, asked.is_causal)
            slots, labels = gather_labelled(hidden, asked.labels)
            logits = model.predict(slots).float()
            losses = F.cross_entropy(logits, labels, reduction="none")
            hits = logits.argmax(dim=-1) == labels
            answers = (asked.batch.sample_ids[asked.selected], as_sum(losses), as_sum(hits))
            parts.append(tuple(values.cpu().numpy() for values in answers))
    if not sum(len(losses) for _, losses, _ in parts):
        raise InputError("the texts are too short: none of their tokens is asked for; give more text")
    samples, losses_of, hits_of = (np.concatenate(column) for column in zip(*parts, strict=True))
    check_finite(losses_of)
    _, sample = np.unique(samples, return_inverse=True)
    return SampleScores(*(_add_up(sample, values) for values in (losses_of, hits_of, np.ones(len(sample)))))


def _add_up(sample: NDArray[np.int64], values: Floats) -> Floats:
    return np.bincount(sample, weights=values).astype(np.float64)
