"""Estimate how long a run will take on this machine."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable

from maskwright.batch import PackedBatch
from maskwright.config import Config
from maskwright.runs.texts import Say
from maskwright.training.loop import Callback, Metrics, TrainingLoop
from maskwright.training.state import count_batches_per_step

_LONG_S = 3600.0
_TIMED_S = 0.5
"""Timed gradients must take at least this long, so that the overhead of a call does not matter."""
_SLOW_S = 5.0
"""A first call that takes longer is not repeated."""

BuildRows = Callable[[int], PackedBatch]
"""Some rows of the training data, at most so many."""
_TIME_UNITS = (("days", 86_400), ("hours", 3_600), ("minutes", 60))


class DurationNotice(Callback):
    """Says how long a run of an hour or more will take, and how to have a shorter one.

    One process on a CPU times the gradients of a few rows before its first step, as a step of a large model may take
    minutes there. Otherwise the first log line tells: a GPU would have to compile for other shapes.
    """

    def __init__(self, build_rows: BuildRows, rows_per_batch: int, row_length: float, shorter: str, say: Say) -> None:
        self._build_rows, self._most_rows = build_rows, rows_per_batch
        self._places_per_batch = rows_per_batch * row_length
        self._shorter, self._say = shorter, say
        self._is_told = False

    def on_train_begin(self) -> None:
        trainer = self.trainer
        self._is_told = trainer.stop_training or (trainer.budget.max_seconds or math.inf) < _LONG_S
        if self._is_told or trainer.engine.device.type != "cpu" or trainer.engine.is_compiled or trainer.world.size > 1:
            return
        place_s = measure_place_s(trainer, self._build_rows, self._most_rows, self._is_short)
        num_steps, seconds = self.estimate(place_s)
        self._tell(num_steps, seconds, 1 / place_s)

    def on_log(self, metrics: Metrics) -> None:
        progress = metrics["progress"]
        if not self._is_told and progress:
            left = (1.0 - progress) / progress
            self._tell(round(metrics["step"] * left), metrics["elapsed_s"] * left, metrics["tokens_per_s"])

    def estimate(self, place_s: float) -> tuple[int, float]:
        """The steps that are left and their time, at so many seconds a token; batches count as grown already."""
        budget, state = self.trainer.budget, self.trainer.state
        batches_per_step = count_batches_per_step(self.trainer.config, 1.0)
        places_per_step = batches_per_step * self._places_per_batch
        step_s = places_per_step * place_s
        num_steps = min(
            (budget.expected_batches - state.num_batches) / batches_per_step,
            (budget.max_steps or math.inf) - state.step,
            ((budget.max_tokens or math.inf) - state.num_places) / places_per_step,
            ((budget.max_seconds or math.inf) - state.elapsed_s) / step_s,
        )
        return math.ceil(num_steps), num_steps * step_s

    def _is_short(self, place_s: float) -> bool:
        return self.estimate(place_s)[1] < _LONG_S

    def _tell(self, num_steps: int, seconds: float, tokens_per_s: float) -> None:
        self._is_told = True
        if seconds >= _LONG_S:
            more = "more " if self.trainer.state.step else ""
            self._say(
                f"about {format_seconds(seconds)} for {num_steps:,} {more}steps at {tokens_per_s:,.0f} tokens/s on"
                f" {self.trainer.engine.device}; Ctrl-C is safe, the same command resumes\n{self._shorter}"
            )


def measure_place_s(
    trainer: TrainingLoop, build_rows: BuildRows, most_rows: int, is_enough: Callable[[float], bool]
) -> float:
    """Seconds per token, padding included, for the gradients of a few rows; weights do not change.

    The first call and few rows take longer than what follows, so a time that is short enough is not measured again.
    """
    step = trainer.engine.begin(trainer.state, trainer.warn)
    num_rows, num_calls = 1, 0
    while True:
        batch = build_rows(num_rows)
        begun = time.perf_counter()
        step.compute_gradients(batch, step=0, epoch=0, mask_ratio=trainer.model.mask_ratio)
        seconds, num_calls = time.perf_counter() - begun, num_calls + 1
        if is_enough(seconds / batch.input_ids.numel()):
            break
        is_settled = num_calls > 1 or seconds > _SLOW_S  # the first call prepares what later ones use
        if is_settled and (seconds > _TIMED_S or num_rows >= most_rows):
            break
        if seconds <= _TIMED_S:
            num_rows = min(2 * num_rows, most_rows)
    trainer.optimizers.zero_grad()
    return seconds / batch.input_ids.numel()


def suggest_shorter_run(config: Config) -> str:
    """Settings that end a pre-training run earlier, and a smaller model where one can be chosen."""
    schedule = config.schedule
    fixed = {"schedule.decay_steps=null": schedule.decay_steps, "schedule.warmup_steps=null": schedule.warmup_steps}
    words = ["training.max_seconds=3600", *(word for word, steps in fixed.items() if steps is not None)]
    advice = f"shorter: {' '.join(words)}"
    if config.model.from_ is None and config.preset != "quickstart":
        source = config.data.train if isinstance(config.data.train, str) else "..."
        command = shlex.join(["maskwright", "train", f"data.train={source}", "run.name=small"])
        advice += f"; a small model in minutes: {command}"
    return advice


def format_seconds(seconds: float) -> str:
    """Format seconds in the largest unit of which there are at least two."""
    for unit, size in _TIME_UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.3g} seconds"
