"""Loss and right answers of each sample under the evaluation's fixed masks, or next tokens for a causal model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from maskwright.batch import PackedBatch
from maskwright.errors import InputError
from maskwright.evaluation.answers import check_finite
from maskwright.models.any_encoder import encode
from maskwright.objectives.loss import gather_labelled
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.training.compute.device import evaluation_mode
from maskwright.training.held_out import EVALUATION_RATIO, EVALUATION_SEED

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
            answers = (asked.batch.sample_ids[asked.selected], losses.double(), hits.double())
            parts.append(tuple(values.cpu().numpy() for values in answers))
    if not sum(len(losses) for _, losses, _ in parts):
        raise InputError("the texts are too short: none of their tokens is asked for; give more text")
    samples, losses_of, hits_of = (np.concatenate(column) for column in zip(*parts, strict=True))
    check_finite(losses_of)
    _, sample = np.unique(samples, return_inverse=True)
    return SampleScores(*(_add_up(sample, values) for values in (losses_of, hits_of, np.ones(len(sample)))))


def _add_up(sample: NDArray[np.int64], values: Floats) -> Floats:
    return np.bincount(sample, weights=values).astype(np.float64)
