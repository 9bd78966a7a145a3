"""Live progress of a fine-tuning run, by the metric of its task."""

from __future__ import annotations

import math
import time

from rich.console import Console

from maskwright.training.callbacks import Metrics
from maskwright.training.progress import ProgressDisplay, format_duration

_PLAIN_INTERVAL_S = 10.0


class TaskProgress(ProgressDisplay):
    """Shows the loss, the task's metric on the examples just seen, tokens per second and the time left."""

    def __init__(self, console: Console, metric: str) -> None:
        super().__init__(console)
        self.metric = metric

    def on_log(self, metrics: Metrics) -> None:
        epoch, progress = int(metrics["epoch"]) + 1, metrics["progress"]
        left_s = metrics["elapsed_s"] * (1.0 - progress) / progress if progress else 0.0
        # A correlation needs labels, which training examples may lack.
        score = "" if math.isnan(metrics[self.metric]) else f"  {self.metric} {metrics[self.metric]:.3f}"
        speed = f"{metrics['tokens_per_s']:,.0f} tokens/s"
        status = f"loss {metrics['loss']:.3f}{score}  {speed}  {format_duration(left_s)} left"
        if self._bar is not None:
            self._bar.update(self._task, completed=progress, epoch=epoch, status=status)
        elif time.monotonic() - self._last_line_s >= _PLAIN_INTERVAL_S:
            self._last_line_s = time.monotonic()
            self._print(f"step {int(metrics['step'])}  epoch {epoch}  {progress:.0%}  {status}")
