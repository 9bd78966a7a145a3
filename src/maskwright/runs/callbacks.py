"""Callbacks that keep a run folder up to date."""

from __future__ import annotations

import json

from maskwright.runs.folder import RunFolder
from maskwright.storage import write_text
from maskwright.text.tokenizer import Tokenizer
from maskwright.training.callbacks import Callback, Metrics


class MetricsLog(Callback):
    """One JSON object per log line in metrics.jsonl; lines a resumed run will write again are dropped first."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run

    def on_train_begin(self) -> None:
        step = self.trainer.state.step
        # An epoch's validation comes after the checkpoint of its last step, so it is done again as well.
        kept = [line for line in self.run.read_metrics() if (line["step"], "val_loss" in line) <= (step, False)]
        write_text(self.run.metrics_file, "".join(json.dumps(line) + "\n" for line in kept))

    def on_log(self, metrics: Metrics) -> None:
        self._append(metrics)

    def on_epoch_end(self, epoch: int, metrics: Metrics) -> None:
        state = self.trainer.state
        values = {name: value for name, value in metrics.items() if name.startswith("val_")}
        if values:
            self._append({"step": state.step, "epoch": epoch, "tokens": state.num_tokens, **values})

    def _append(self, metrics: Metrics) -> None:
        with self.run.metrics_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(metrics) + "\n")


class PeriodicCheckpoints(Callback):
    """A checkpoint every so many steps, the newest few kept."""

    def __init__(self, run: RunFolder, tokenizer: Tokenizer, every_steps: int, keep: int) -> None:
        self.run = run
        self.tokenizer = tokenizer
        self.every_steps = every_steps
        self.keep = keep

    def on_step_end(self, step: int) -> None:
        if step % self.every_steps == 0:
            self.trainer.save_checkpoint(self.run.checkpoints, self.tokenizer, self.keep)
