"""How fast steps are, and whether the loader keeps up with them."""

from __future__ import annotations

import math
import time

from maskwright.data.loader import PackedLoader
from maskwright.runs.checkup.findings import Finding
from maskwright.runs.checkup.step import StepFigures
from maskwright.runs.checkup.units import format_seconds

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
        off = f"gradients of compiled kernels are off by {figures.off_plain:.0%} of those of plain ones"
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
