"""Live progress: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from maskwright.terminal import CleanConsole
from maskwright.training.callbacks import Callback, Metrics

_PLAIN_INTERVAL_S = 10.0


class ProgressDisplay(Callback):
    """Shows loss, accuracy, tokens per second and the time left."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or CleanConsole()
        self._bar: Progress | None = None
        self._last_line_s = float("-inf")

    def on_train_begin(self) -> None:
        self._last_line_s = float("-inf")
        if self.console.is_terminal:
            self._bar = Progress(
                TextColumn("epoch {task.fields[epoch]}"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f}%  {task.fields[status]}"),
                console=self.console,
            )
            self._task = self._bar.add_task("train", total=1.0, epoch=1, status="starting")
            self._bar.start()

    def on_log(self, metrics: Metrics) -> None:
        status = _format_status(metrics)
        epoch = int(metrics["epoch"]) + 1
        if self._bar is not None:
            self._bar.update(self._task, completed=metrics["progress"], epoch=epoch, status=status)
        elif time.monotonic() - self._last_line_s >= _PLAIN_INTERVAL_S:
            self._last_line_s = time.monotonic()
            self._print(f"step {int(metrics['step'])}  epoch {epoch}  {metrics['progress']:.0%}  {status}")

    def on_epoch_end(self, epoch: int, metrics: Metrics) -> None:
        values = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        self._print(f"epoch {epoch + 1} done  {values}")

    def on_evaluation(self, metrics: Metrics) -> None:
        values = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        self._print(f"step {self.trainer.state.step}  {values}")

    def on_warning(self, message: str) -> None:
        self.console.print(f"warning: {message}", style="yellow", highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _print(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)


def _format_status(metrics: Metrics) -> str:
    progress = metrics["progress"]
    accuracy = next((value for name, value in metrics.items() if name.endswith("accuracy")), None)
    shown = "" if accuracy is None else f"  accuracy {accuracy:.1%}"
    left_s = metrics["elapsed_s"] * (1.0 - progress) / progress if progress else 0.0
    return f"loss {metrics['loss']:.3f}{shown}  {metrics['tokens_per_s']:,.0f} tokens/s  {format_duration(left_s)} left"


def format_duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
