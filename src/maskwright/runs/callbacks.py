"""Callbacks that write the run folder and handle loss spikes and divergence."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from maskwright.errors import BadStepsError, RunError
from maskwright.models.files.model_folder import list_checkpoints
from maskwright.runs.folder import RunFolder
from maskwright.storage import append_text
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.training.checkpoints import (
    BEST_FILE,
    Retention,
    find_resumable,
    has_finite_weights,
    is_whole,
    name_best,
)
from maskwright.training.held_out import choose_token_loss
from maskwright.training.loop import Callback, Metrics

_BEST_FILE_BYTES = 100


class MetricsLog(Callback):
    """Writes one JSON object per log line to metrics.jsonl; lines that a resumed run will repeat are removed first.

    Lines that a full disk refuses are kept until there is room.
    """

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self._unwritten: list[dict[str, Any]] = []

    def on_train_begin(self) -> None:
        for problem in self.run.find_lost_metrics(self.trainer.state.step):
            self.trainer.warn(problem)
        self.run.keep_metrics(self._is_past)

    def _is_past(self, line: Metrics) -> bool:
        """Whether a line belongs to the state; the end of an epoch comes after the checkpoint of its last step."""
        state = self.trainer.state
        if line["step"] == state.step and line.get("epoch_end"):
            return state.batch_in_epoch == 0
        return line["step"] <= state.step

    def on_log(self, metrics: Metrics) -> None:
        self._append(metrics)

    def on_evaluation(self, metrics: Metrics) -> None:
        self._append({**self._place(self.trainer.state.epoch), **metrics})

    def on_epoch_end(self, epoch: int, metrics: Metrics) -> None:
        values = {name: value for name, value in metrics.items() if name.startswith("val_")}
        if values:
            self._append({**self._place(epoch), **values, "epoch_end": True})

    def _place(self, epoch: int) -> dict[str, float]:
        state = self.trainer.state
        return {"step": state.step, "epoch": epoch, "tokens": state.num_tokens}

    def keep(self, is_kept: Callable[[Metrics], bool]) -> None:
        """Drop the other lines, written or not."""
        self._unwritten = [line for line in self._unwritten if is_kept(line)]
        self.run.keep_metrics(is_kept)

    def _append(self, metrics: Metrics) -> None:
        # JSON has no NaN; a line of steps that were all skipped has no loss.
        self._unwritten.append({name: value if math.isfinite(value) else None for name, value in metrics.items()})
        self.trainer.late_writes.write(self.run.metrics_file, self._write, len(self._format()))

    def _write(self) -> None:
        append_text(self.run.metrics_file, self._format())
        self._unwritten = []

    def _format(self) -> str:
        return "".join(json.dumps(line) + "\n" for line in self._unwritten)


class PeriodicCheckpoints(Callback):
    """A checkpoint every so many steps and at the end; the newest few, milestones and the best are kept.

    The first one is whole before the first evaluation, which needs memory that training did not. Of less than `least_s`
    seconds of training neither that one nor the last is written.
    """

    on_every_rank = True

    def __init__(
        self,
        run: RunFolder,
        tokenizer: Tokenizer,
        every_steps: int,
        retention: Retention,
        keep_best: bool = False,
        least_s: float = 0.0,
    ) -> None:
        self.run = run
        self.tokenizer = tokenizer
        self.every_steps = every_steps
        self.retention = retention
        self.keep_best = keep_best
        self.least_s = least_s
        self._is_new_best = self._has_any = False

    def on_train_begin(self) -> None:
        state = self.trainer.state
        self._has_any = state.step > 0
        if self.trainer.world.is_main and state.best_step is not None:
            file = self.run.checkpoints / BEST_FILE
            write = partial(name_best, self.run.checkpoints, state.best_step, state.best_loss)
            self.trainer.late_writes.write(file, write, _BEST_FILE_BYTES)

    def on_step_end(self, step: int) -> None:
        if step % self.every_steps == 0 or self._is_new_best:
            self._save()
        # A checkpoint of a step that is evaluated stands for its evaluation too, so the step before has the first one.
        every = self.trainer.config.evaluate_every_steps
        if every is not None and (step + 1) % every == 0:
            self._save_first()

    def on_epoch_evaluation_begin(self) -> None:
        self._save_first()

    def on_evaluation(self, metrics: Metrics) -> None:
        state, loss = self.trainer.state, metrics["val_loss"]
        if self.keep_best and (state.best_loss is None or loss < state.best_loss):
            state.best_step, state.best_loss, self._is_new_best = state.step, loss, True

    def on_epoch_end(self, epoch: int, metrics: Metrics) -> None:
        # Losses of a few batches and of all do not compare.
        if "val_loss" in metrics and self.trainer.config.evaluate_max_batches is None:
            self.on_evaluation(metrics)
        if self._is_new_best or (self.trainer.stop_training and self._is_worth_it):
            self._save()

    @property
    def _is_worth_it(self) -> bool:
        return self.trainer.state.elapsed_s >= self.least_s

    def _save_first(self) -> None:
        if not self._has_any and self._is_worth_it:
            self._save()
            self.trainer.finish_writing()

    def _save(self) -> None:
        self._is_new_best, self._has_any = False, True
        self.trainer.save_checkpoint(self.run.checkpoints, self.tokenizer, self.retention, background=True)


class RollBack(Callback):
    """Returns to the last checkpoint when the loss jumps, and continues after the batches that caused it.

    The lines of the steps that are undone leave metrics.jsonl, so it stands behind `MetricsLog`.

    A jump is measured against the last log lines: their mean and standard deviation.
    """

    on_every_rank = True
    num_lines = 20
    max_returns = 3
    """The largest number of returns to one checkpoint, so that a run cannot loop for ever."""

    def __init__(self, run: RunFolder, num_deviations: float, log: MetricsLog) -> None:
        self.run = run
        self.log = log
        self.num_deviations = num_deviations
        self._losses: list[float] = []
        self._returns: list[str] = []

    def on_train_begin(self) -> None:
        lines = [line for line in self.run.read_metrics() if line["step"] <= self.trainer.state.step]
        self._losses = [line["loss"] for line in lines if line.get("loss") is not None][-self.num_lines :]

    def on_log(self, metrics: Metrics) -> None:
        loss = metrics["loss"]
        if self._is_jump(loss):
            self._return(metrics)
        elif math.isfinite(loss):
            self._losses = [*self._losses, loss][-self.num_lines :]

    def _is_jump(self, loss: float) -> bool:
        if len(self._losses) < self.num_lines // 2:
            return False
        return loss > statistics.fmean(self._losses) + self.num_deviations * statistics.stdev(self._losses)

    def _return(self, metrics: Metrics) -> None:
        self.trainer.finish_writing()
        checkpoint, _ = find_resumable(self.run.checkpoints)
        if checkpoint is None:
            return
        self._returns.append(checkpoint.name)
        if self._returns.count(checkpoint.name) > self.max_returns:
            raise RunError(
                f"the loss rose again after {self.max_returns} returns to {checkpoint.name}, so other batches do not"
                " help; start a new run with model.from set to this one and a lower optimizer.learning_rate, or a"
                " larger training.rollback_deviations"
            )
        self.trainer.warn(
            f"the loss rose to {metrics['loss']:.3f} at step {int(metrics['step'])}, from about"
            f" {statistics.fmean(self._losses):.3f}; going back to {checkpoint.name}, past the batches since"
        )
        self.trainer.roll_back(checkpoint)
        if self.trainer.world.is_main:
            self.log.keep(self._stands)

    def _stands(self, line: Metrics) -> bool:
        """Whether it tells of a step that was not undone; an evaluation inside an epoch is done again at its step."""
        step = self.trainer.state.step
        is_evaluation = "loss" not in line and "epoch_end" not in line
        return line["step"] < step or (line["step"] == step and not is_evaluation)


@dataclass(frozen=True)
class _Line:
    """The state of the weights by a log line: those of the step before its first one."""

    step: int
    loss: float | None
    num_skipped: float
    is_diverged: bool


class DivergenceWatch(Callback):
    """Detects divergence: a training loss far above the best one, during training and at the end.

    That of a language model has diverged if it is not under the loss of guessing by token frequencies (but for
    `near`) and `far` above the run's best; the loss of the first step counts as reached. Of other models the loss must
    be `far` above twice that of the first step. Held-out losses rise by overfitting too, so the watch goes by those
    of training.
    """

    on_every_rank = True
    near, far = 0.25, 1.0
    """Nats: how well training text may be guessed by frequencies alone, and more than losses of log lines vary."""
    num_lines = 3
    """Lines in a row before divergence is reported, as a spike may pass."""

    def __init__(self, run: RunFolder, unigram_loss: float | None = None) -> None:
        self.run = run
        self.unigram_loss = unigram_loss
        self._lines: list[_Line] = []
        self._best = math.inf

    def on_train_begin(self) -> None:
        self._lines, self._best = [], math.inf
        for line in self.run.read_metrics():
            if line["step"] <= self.trainer.state.step and "loss" in line:
                self._note(line)

    def on_log(self, metrics: Metrics) -> None:
        self._lines = [line for line in self._lines if line.step < metrics["step"]]  # a run may have gone back
        self._note(metrics)
        last = [line.is_diverged for line in self._lines[-self.num_lines - 1 :]]
        if last[-self.num_lines :] == [True] * self.num_lines and (len(last) == self.num_lines or not last[0]):
            trouble = f"the training {self._describe(choose_token_loss(metrics))}"
            self.trainer.warn(
                f"step {int(metrics['step'])}: {trouble}; stop the run and {self.advise()}, with a lower"
                " optimizer.learning_rate"
            )

    def _note(self, metrics: Metrics) -> None:
        loss = choose_token_loss(metrics)
        is_finite = loss is not None and math.isfinite(loss)
        is_diverged = self.is_diverged(loss) if is_finite else bool(self._lines) and self._lines[-1].is_diverged
        self._lines.append(
            _Line(int(metrics["step"]), loss if is_finite else None, metrics.get("skipped_steps", 0), is_diverged)
        )
        if is_finite:
            self._best = min(self._best, loss)

    def is_diverged(self, loss: float) -> bool:
        first = self.trainer.state.first_loss
        if self.unigram_loss is None:
            return first is not None and loss > 2 * first + self.far
        return loss > self.unigram_loss - self.near and loss > self._find_best() + self.far

    def _find_best(self) -> float:
        first = self.trainer.state.first_loss
        return self._best if first is None else min(self._best, first)

    def _describe(self, loss: float) -> str:
        first = self.trainer.state.first_loss
        facts = [f"its best was {self._find_best():.3f}"]
        facts += [] if first is None else [f"it began at {first:.3f}"]
        facts += [] if self.unigram_loss is None else [f"guessing by token frequencies has {self.unigram_loss:.3f}"]
        return f"loss has diverged to {loss:.3f} ({', '.join(facts)})"

    def judge(self, held_out_loss: float | None) -> dict[str, Any]:
        """For final.json: whether the run ended diverged, and what to do then; `held_out_loss` may acquit it."""
        last = self._lines[-1] if self._lines else None
        if last is None or not last.is_diverged or (held_out_loss is not None and not self.is_diverged(held_out_loss)):
            return {"diverged": False}
        loss = last.loss if held_out_loss is None else held_out_loss
        which = "training" if held_out_loss is None else "held-out"
        trouble = (
            f"the {which} {self._describe(math.nan if loss is None else loss)}; the model is kept in {self.run.model},"
            f" but is of no use; {self.advise()}, with a lower optimizer.learning_rate"
        )
        return {"diverged": True, "trouble": trouble}

    def advise(self) -> str:
        """Advice to restart from the newest checkpoint known to be good, if there is one."""
        if self.unigram_loss is None:
            return "start a new run"
        good = self.find_good_checkpoint()
        if good is None:
            return "start a new run from the beginning, as no checkpoint of this one is known to be good"
        return f"start a new run from the last good checkpoint, model.from={good}"

    def find_good_checkpoint(self) -> Path | None:
        """The newest checkpoint after which training went well: the next line has a finite loss and no bad step."""
        for checkpoint in list_checkpoints(self.run.checkpoints):
            step = int(checkpoint.name.removeprefix("step-"))
            before = max((line.num_skipped for line in self._lines if line.step <= step), default=0)
            after = next((line for line in self._lines if line.step > step), None)
            if after is None or after.loss is None or after.is_diverged or after.num_skipped > before:
                continue
            if is_whole(checkpoint) and has_finite_weights(checkpoint):
                return checkpoint
        return None

    @contextmanager
    def naming_good_checkpoint(self) -> Iterator[None]:
        """Inside the block, the error of a run that ends after bad steps names the checkpoint to restart from."""
        try:
            yield
        except BadStepsError as error:
            raise BadStepsError(error.problem, self.advise()) from error
