"""Live progress: a bar in a terminal, a bar with curves in a notebook, plain lines elsewhere."""

from __future__ import annotations

import math
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from maskwright.terminal import CleanConsole, say, warn
from maskwright.training.loop import Callback, Metrics
from maskwright.training.notebook import NotebookView

_PLAIN_INTERVAL_S = 10.0
_SILENT_INTERVAL_S = 60.0


class ProgressDisplay(Callback):
    """Shows loss, accuracy, tokens per second and the time left."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or CleanConsole()
        self._bar: Progress | None = None
        self._view: NotebookView | None = None
        self._last_line_s = float("-inf")

    def on_train_begin(self) -> None:
        self._last_line_s = time.monotonic() - _PLAIN_INTERVAL_S  # the first log line is shown
        if self.console.is_jupyter and not self.console.quiet:
            self._view = NotebookView()
        elif self.console.is_terminal:
            self._bar = Progress(
                TextColumn("epoch {task.fields[epoch]}"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f}%  {task.fields[status]}"),
                console=self.console,
            )
            self._task = self._bar.add_task("train", total=1.0, epoch=1, status="starting")
            self._bar.start()

    def on_log(self, metrics: Metrics) -> None:
        if self._view is not None:
            self._view.add(self.trainer.state.step, metrics)
        speed = f"{metrics['tokens_per_s']:,.0f} tokens/s"
        self._show(f"loss {metrics['loss']:.3f}{self.format_score(metrics)}  {speed}", _PLAIN_INTERVAL_S)

    def on_step_end(self, step: int) -> None:
        """Show progress where log lines are far apart, without fetching the step's results."""
        self._show("", _SILENT_INTERVAL_S)

    def format_score(self, metrics: Metrics) -> str:
        """The accuracy, if any, to print after the loss."""
        accuracy = next((value for name, value in metrics.items() if name.endswith("accuracy")), None)
        return "" if accuracy is None else f"  accuracy {accuracy:.1%}"

    def _show(self, status: str, interval_s: float) -> None:
        """Update the bar, or print a line if the last one is at least `interval_s` ago."""
        trainer, now_s = self.trainer, time.monotonic()
        is_due = now_s - self._last_line_s >= interval_s
        is_live = self._bar is not None or self._view is not None
        if not is_due and not (is_live and status):
            return
        self._last_line_s = now_s
        progress, epoch = trainer.progress, trainer.state.epoch + 1
        left_s = trainer.state.elapsed_s * (1.0 - progress) / progress if progress else 0.0
        status = "  ".join([*filter(None, [status]), f"{format_duration(left_s)} left"])
        line = f"step {trainer.state.step}  epoch {epoch}  {progress:.0%}  {status}"
        if self._bar is not None:
            self._bar.update(self._task, completed=progress, epoch=epoch, status=status)
        elif self._view is not None:
            self._view.show(progress, line)
        else:
            say(self.console, line)

    def on_epoch_end(self, epoch: int, metrics: Metrics) -> None:
        self._measure(f"epoch {epoch + 1} done", metrics)

    def on_evaluation(self, metrics: Metrics) -> None:
        self._measure(f"step {self.trainer.state.step}", metrics)

    def _measure(self, moment: str, metrics: Metrics) -> None:
        line = f"{moment}  {_format_measured(metrics)}"
        if self._view is None:
            say(self.console, line)
            return
        self._view.add(self.trainer.state.step, {name: value for name, value in metrics.items() if name[:4] == "val_"})
        self._view.add_line(line)

    def on_warning(self, message: str) -> None:
        warn(self.console, message)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        if self._view is not None:
            self._view.close()
            self._view = None


def _format_measured(metrics: Metrics) -> str:
    """The metrics that could be measured; a correlation without labels is NaN and left out."""
    return "  ".join(f"{name} {value:.4f}" for name, value in metrics.items() if not math.isnan(value))


def format_duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
