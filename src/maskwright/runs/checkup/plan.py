"""How long the configured run will be, and the usual mistakes in that."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from maskwright.config import Config
from maskwright.data.loader import PackedLoader
from maskwright.runs.checkup.findings import Finding
from maskwright.runs.checkup.step import StepFigures
from maskwright.runs.checkup.units import format_seconds
from maskwright.training.budget import Budget
from maskwright.training.ramp import count_batches_per_step
from maskwright.training.state import TrainingState

_RESOLUTION = 10_000
"""Strides of the calculation; runs of fewer steps are counted exactly."""
_FEW_STEPS = 100


@dataclass(frozen=True)
class Plan:
    num_steps: int
    num_places: int
    seconds: float
    num_epochs: float
    warmup_steps: int
    batches_per_epoch: int
    batches_per_step: int
    """At the end of the run, where batches that grow have grown."""


def plan_run(config: Config, train: PackedLoader, figures: StepFigures) -> Plan:
    """Go through the run in strides, as growing batches make its length a matter of its progress."""
    training = config.training
    largest = count_batches_per_step(training, 1.0)
    places_per_batch = train.rows_per_batch * train.row_length
    num_batches = len(train) * (training.epochs - training.initial_epoch)
    budget = Budget(num_batches, training.max_steps, training.max_tokens, training.max_seconds)
    state = TrainingState()
    shortest = min(
        num_batches / largest,
        training.max_steps or math.inf,
        (training.max_tokens or math.inf) / (largest * places_per_batch),
        (training.max_seconds or math.inf) / figures.seconds,
    )
    stride = max(1, int(shortest / _RESOLUTION))
    while budget.progress(state) < 1.0:
        batches_per_step = count_batches_per_step(training, budget.progress(state))
        state.step += stride
        state.num_batches += stride * batches_per_step
        state.num_places += stride * batches_per_step * places_per_batch
        state.elapsed_s += stride * figures.seconds * batches_per_step / largest
    schedule = config.schedule
    share_of = schedule.decay_steps or state.step
    return Plan(
        num_steps=state.step,
        num_places=state.num_places,
        seconds=state.elapsed_s,
        num_epochs=state.num_batches / len(train),
        warmup_steps=round(schedule.warmup_share * share_of)
        if schedule.warmup_steps is None
        else schedule.warmup_steps,
        batches_per_epoch=len(train),
        batches_per_step=largest,
    )


def check_plan(config: Config, plan: Plan) -> list[Finding]:
    rate = f"{config.optimizer.learning_rate:g}"
    if config.optimizer.type == "muon":
        rate += f" (matrices {config.optimizer.muon_learning_rate:g})"
    findings = [
        Finding(
            "run",
            "OK",
            f"about {plan.num_steps:,} steps, {plan.num_places:,} tokens, {plan.num_epochs:.3g} epochs,"
            f" {format_seconds(plan.seconds)} without evaluations",
        ),
        Finding(
            "schedule",
            "OK",
            f"{config.optimizer.type}, learning rate up to {rate} in {plan.warmup_steps:,} steps, then"
            f" {config.schedule.type}",
        ),
    ]
    return findings + list(_find_mistakes(config, plan))


def _find_mistakes(config: Config, plan: Plan) -> Iterator[Finding]:
    training = config.training
    if plan.num_steps < _FEW_STEPS:
        yield _warn(
            f"{plan.num_steps} steps teach a model little",
            "raise the budget (training.epochs, max_steps, max_tokens or max_seconds) or lower training.batch_tokens",
        )
    if plan.warmup_steps >= plan.num_steps:
        yield _warn(
            f"the warm-up of {plan.warmup_steps:,} steps is not over when the run ends after {plan.num_steps:,}",
            "lower schedule.warmup_steps, or leave it unset for a share of the run",
        )
    if plan.batches_per_epoch <= plan.batches_per_step:
        yield _warn(
            f"a step of {training.batch_tokens:,} tokens takes the whole epoch",
            "lower training.batch_tokens: at this size many small steps learn more",
        )
    if training.checkpoint_every_steps > plan.num_steps:
        yield _warn(
            f"checkpoints are {training.checkpoint_every_steps:,} steps apart, so the run ends before the first",
            "lower training.checkpoint_every_steps, or a crash loses everything",
        )


def _warn(text: str, advice: str) -> Finding:
    return Finding("run", "warning", text, advice)
