"""Loss and accuracy on held-out data, under masks that are the same in every evaluation."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from maskwright.batch import PackedBatch, find_asked
from maskwright.errors import InputError, InputWarning
from maskwright.objectives.loss import as_sum
from maskwright.objectives.objective import Objective
from maskwright.training.batches import check_ids
from maskwright.training.compute.device import evaluation_mode
from maskwright.training.compute.parallel import Alone
from maskwright.training.compute.precision import Precision
from maskwright.training.distributed.world import World
from maskwright.training.micro_batches import MicroBatches

EVALUATION_SEED = 15
EVALUATION_RATIO = 0.15


@dataclass(frozen=True)
class Evaluation:
    """The model's metrics over the masked tokens; NaN if there was none."""

    metrics: dict[str, float]
    num_masked: int
    sums: tuple[float, ...] = ()
    """What the metrics are computed from."""
    parts: Mapping[str, Evaluation] = field(default_factory=dict)
    """Those of the sources, where each is evaluated."""

    @property
    def loss(self) -> float:
        return self.metrics["loss"]

    @property
    def token_loss(self) -> float:
        return choose_token_loss(self.metrics)

    @property
    def accuracy(self) -> float:
        """Accuracy of the first part of the loss."""
        return next(value for name, value in self.metrics.items() if name.endswith("accuracy"))

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.token_loss, 700.0))


def choose_token_loss(metrics: Mapping[str, float]) -> float:
    """The loss of the predicted tokens alone, without other parts of the loss."""
    return metrics.get("generator_loss", metrics.get("mlm_loss", metrics["loss"]))


@torch.no_grad()
def evaluate(
    model: Objective,
    batches: Iterable[PackedBatch],
    *,
    mask_ratio: float = EVALUATION_RATIO,
    seed: int = EVALUATION_SEED,
    max_batches: int | None = None,
    placed: Alone | None = None,
    world: World | None = None,
    micro_batches: MicroBatches | None = None,
) -> Evaluation:
    """Evaluate without dropout; masks depend on the samples alone, not on the run or its progress.

    With several processes each evaluates its share of every batch, and all get the same result. If memory runs out,
    batches are split; `micro_batches` remembers the size that fits.
    """
    placed, world = placed or Alone(model, Precision("fp32")), world or World()
    micro_batches = micro_batches or MicroBatches(None, world.size == 1, _warn, is_training=False)
    device = next(placed.trained.parameters()).device
    totals: Tensor | None = None

    def add_up(parts: list[PackedBatch]) -> Tensor:
        sums = [placed.loss_sums(model.ask_for_evaluation(part.to(device), seed, mask_ratio)) for part in parts]
        return torch.stack([as_sum(torch.cat([one.losses, one.counts, one.figures])) for one in sums]).sum(0)

    with evaluation_mode(placed.trained):
        for batch in islice(batches, max_batches):
            check_ids(batch, model.vocab_size)
            sums = micro_batches.run(batch, add_up)
            totals = sums if totals is None else totals + sums
    if totals is None:
        raise InputError("there is no batch to evaluate; give a list or a loader that holds some")
    totals = world.sum(totals)
    return _summarise(model, totals.tolist())


def evaluate_parts(
    model: Objective, parts: Mapping[str, Iterable[PackedBatch]], *, max_batches: int | None = None, **options: Any
) -> Evaluation:
    """Evaluate the batches of each source by themselves, and from their sums all of them together.

    The metrics name the loss of each source too.
    """
    most = None if max_batches is None else math.ceil(max_batches / len(parts))
    found = {name: evaluate(model, batches, max_batches=most, **options) for name, batches in parts.items()}
    whole = _summarise(model, [math.fsum(column) for column in zip(*(one.sums for one in found.values()), strict=True)])
    losses = {f"loss_{name}": one.token_loss for name, one in found.items()}
    return replace(whole, metrics=whole.metrics | losses, parts=found)


def _summarise(model: Objective, sums: list[float]) -> Evaluation:
    return Evaluation(model.compute_metrics(sums), int(sums[len(model.part_weights)]), tuple(sums))


def _warn(message: str) -> None:
    warnings.warn(message, InputWarning, stacklevel=4)


def evaluate_unigram(
    model: Objective,
    batches: Iterable[PackedBatch],
    token_counts: Tensor,
    *,
    mask_ratio: float = EVALUATION_RATIO,
    seed: int = EVALUATION_SEED,
) -> float:
    """The loss of a unigram model (token frequencies of the training text, add-one smoothing) on the same masked
    tokens.
    """
    smoothed = token_counts.double() + 1.0
    log_probabilities = torch.log(smoothed / smoothed.sum())
    loss_sum, num_masked = 0.0, 0
    for batch in batches:
        asked = model.ask_for_evaluation(batch, seed, mask_ratio)
        labels = asked.labels[find_asked(asked.labels)]
        loss_sum -= float(log_probabilities[labels].sum())
        num_masked += len(labels)
    if not num_masked:
        raise InputError("the held-out text is too small: none of its tokens is asked for; hold out more")
    return loss_sum / num_masked
