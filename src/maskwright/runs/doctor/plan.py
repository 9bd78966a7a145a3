"""How long the configured run will be, how fast its steps and its loader are, and the usual mistakes in that."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

from maskwright.config import Config
from maskwright.data.loader import PackedLoader
from maskwright.runs.doctor.findings import Finding
from maskwright.runs.doctor.step import StepFigures
from maskwright.runs.duration import format_seconds
from maskwright.training.state import Budget, TrainingState, count_batches_per_step

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
    """Simulate the run in strides, because with growing batches its length depends on its progress."""
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


_PATIENCE_S = 2.0
_MOST_BATCHES = 500
_LEAST_HEADROOM = 2.0
_MOST_OFF_PLAIN = 0.25
"""More than rounding explains: bf16 rounds by 0.4% about 20 times a layer, or 9% of the norm after 24 layers."""


def measure_loader(train: PackedLoader) -> float:
    """Tokens a second, padding included, of reading alone; what an epoch's start takes is spread over the epoch."""
    begun = time.perf_counter()
    batches = train.epoch(0)
    num_places = next(batches).input_ids.numel()
    first_s = time.perf_counter() - begun
    num_read, begun = 0, time.perf_counter()
    for batch in batches:
        num_read += 1
        num_places += batch.input_ids.numel()
        if num_read == _MOST_BATCHES or time.perf_counter() - begun > _PATIENCE_S:
            break
    others_s = (time.perf_counter() - begun) * (len(train) - 1) / max(1, num_read)
    return num_places / (num_read + 1) * len(train) / (first_s + others_s)


def check_step(figures: StepFigures, vocab_size: int) -> Finding:
    """Whether losses and gradients are numbers; an untrained model's loss is near ln(vocabulary)."""
    text = f"the loss starts at {figures.loss:.2f}, a guess among {vocab_size:,} tokens has {math.log(vocab_size):.2f}"
    if not figures.off_plain <= _MOST_OFF_PLAIN:
        by = "not finite" if math.isnan(figures.off_plain) else f"off by {figures.off_plain:.0%} of those of plain ones"
        off = f"gradients of compiled kernels are {by}"
        return Finding("step", "problem", f"{text}; {off}", "use training.compile=false, and report it with this line")
    if figures.is_finite:
        taken = f"{figures.num_first_steps} steps as the run takes them end at {figures.last_loss:.2f}"
        return Finding("step", "OK", f"{text}; {taken}")
    failed = f"the loss or gradient is not finite by step {figures.num_first_steps} of the run"
    advice = (
        "use training.precision=auto or fp32, training.compile=false, a lower learning rate or the default"
        " initializer_range"
    )
    return Finding("step", "problem", f"{text}; {failed}", advice)


def check_speed(figures: StepFigures) -> Finding:
    text = f"{figures.num_tokens / figures.seconds:,.0f} tokens/s, {format_seconds(figures.seconds)} a step"
    if figures.measured_share < 1.0:
        text += f", extrapolated from {figures.measured_share:.0%} of a batch"
    return Finding("speed", "OK", text)


def check_loader(figures: StepFigures, loader_places_per_s: float) -> Finding:
    headroom = loader_places_per_s * figures.seconds / figures.num_places
    text = f"alone {loader_places_per_s:,.0f} tokens/s, {headroom:.3g}x what the steps need"
    advice = (
        "steps will wait for data: run maskwright prepare and give its folder as data.train, switch augmentation off"
        " or free the CPU"
    )
    return Finding.judge("loader", text, advice if headroom < _LEAST_HEADROOM else None)
