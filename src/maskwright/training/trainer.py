"""The training loop, top to bottom.

    for every epoch:
        for every batch of the epoch, in an order that is a function of (seed, epoch):
            set the learning rate and the mask ratio from the run's progress
            corrupt the batch, differentiate the loss, clip, step
            now and then: log; callbacks may checkpoint or stop the run
            end when the budget of steps or seconds is spent
        evaluate on the validation set; callbacks see the epoch's metrics

Everything random is a function of (seed, epoch, step, sample, position), so a resumed run repeats an uninterrupted one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from itertools import islice
from pathlib import Path
from typing import Any

from maskwright.batch import PackedBatch, as_packed
from maskwright.config import OptimizerConfig, ScheduleConfig, TrainingConfig
from maskwright.errors import InputError, RunError
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.training.budget import Budget
from maskwright.training.callbacks import Callback
from maskwright.training.checkpoints import load_checkpoint, save_checkpoint
from maskwright.training.device import choose_device
from maskwright.training.evaluate import evaluate
from maskwright.training.history import History
from maskwright.training.meter import Meter
from maskwright.training.optimizers import build_optimizers
from maskwright.training.schedules import compute_learning_rate
from maskwright.training.state import TrainingState
from maskwright.training.step import TrainStep

Batches = Iterable[Any]
"""A loader with `epoch(n, start_batch)`, or anything that gives batches each time it is iterated."""


class Trainer:
    """Trains a model on packed or padded batches."""

    def __init__(
        self,
        model: MaskedLanguageModel,
        optimizer: OptimizerConfig | None = None,
        schedule: ScheduleConfig | None = None,
        training: TrainingConfig | None = None,
        *,
        mask_ratio: Callable[[float], float] | None = None,
        seed: int = 0,
    ) -> None:
        """`mask_ratio` gives the ratio at a progress in [0, 1]; without it the model's own ratio stays."""
        self.model = model
        self.optimizer_config = optimizer or OptimizerConfig()
        self.schedule_config = schedule or ScheduleConfig()
        self.config = training or TrainingConfig()
        self.seed = seed
        self.device = choose_device(self.config.device)
        self.model.to(self.device)
        self.optimizers = build_optimizers(model, self.optimizer_config)
        self.state = TrainingState()
        self.history = History()
        self.stop_training = False
        self.budget: Budget
        self._mask_ratio = mask_ratio or (lambda progress: model.mask_ratio)
        self._callbacks: Sequence[Callback] = ()

    def fit(
        self,
        train: Batches,
        validation: Batches | None = None,
        epochs: int | None = None,
        callbacks: Sequence[Callback] = (),
        initial_epoch: int = 0,
    ) -> History:
        """Train until `epochs` or the budget of the configuration is reached."""
        epochs = self.config.epochs if epochs is None else epochs
        self._begin(train, epochs, callbacks, initial_epoch)
        for epoch in range(self.state.epoch, epochs):
            if epoch != self.state.epoch:
                self.state.begin_epoch(epoch)
            self._train_epoch(train, epoch)
            metrics = self.state.epoch_metrics()
            if validation is not None:
                evaluation = evaluate(self.model, _iterate(validation, 0, 0))
                metrics |= {"val_loss": evaluation.loss, "val_mlm_accuracy": evaluation.accuracy}
            self.history.append(metrics)
            for callback in callbacks:
                callback.on_epoch_end(epoch, metrics)
            if self.stop_training:
                break
        for callback in callbacks:
            callback.on_train_end()
        return self.history

    def save_checkpoint(self, folder: Path, tokenizer: Any = None, keep: int | None = None) -> Path:
        return save_checkpoint(folder, self.model, self.optimizers, self.state, self.history, tokenizer, keep)

    def load_checkpoint(self, checkpoint: Path) -> None:
        """Go on from a checkpoint: the next `fit` continues where it was taken."""
        self.state, self.history = load_checkpoint(checkpoint, self.model, self.optimizers)

    @property
    def progress(self) -> float:
        return self.budget.progress(self.state.step, self.state.elapsed_s)

    def _begin(self, train: Batches, epochs: int, callbacks: Sequence[Callback], initial_epoch: int) -> None:
        if self.state.step == 0:
            self.state.begin_epoch(initial_epoch)
        steps_per_epoch = _count_batches(train)
        if steps_per_epoch is None and self.config.max_steps is None and self.config.max_seconds is None:
            raise InputError("the training data has no length; set training.max_steps or training.max_seconds")
        total_steps = self.config.max_steps or math.inf
        if steps_per_epoch is not None:
            total_steps = min(total_steps, steps_per_epoch * max(epochs - initial_epoch, 1))
        self.budget = Budget(total_steps, self.config.max_steps, self.config.max_seconds)
        self.stop_training = False
        self._callbacks = callbacks
        self.model.train()
        for callback in callbacks:
            callback.trainer = self
            callback.on_train_begin()

    def _train_epoch(self, train: Batches, epoch: int) -> None:
        state, config = self.state, self.config
        meter = Meter(state)
        begun = time.monotonic() - state.elapsed_s
        train_step: TrainStep | None = None
        for batch in _iterate(train, epoch, state.batch_in_epoch):
            num_tokens = batch.num_tokens()
            train_step = train_step or self._build_step(batch)
            learning_rate = self._set_learning_rate()
            mask_ratio = self._mask_ratio(self.progress)
            result = train_step(
                batch.to(self.device, non_blocking=True), step=state.step, epoch=epoch, mask_ratio=mask_ratio
            )
            meter.add(result, num_tokens)
            state.step += 1
            state.batch_in_epoch += 1
            state.elapsed_s = time.monotonic() - begun
            is_last = self.budget.is_spent(state.step, state.elapsed_s)
            # A line at every checkpoint lets a resumed run write the same lines as an uninterrupted one.
            if is_last or state.step % config.log_every_steps == 0 or state.step % config.checkpoint_every_steps == 0:
                self._log(meter.collect(), {"lr": learning_rate, "mask_ratio": mask_ratio})
            for callback in self._callbacks:
                callback.on_step_end(state.step)
            self.stop_training |= is_last
            if self.stop_training:
                break
        meter.collect()

    def _build_step(self, batch: PackedBatch) -> TrainStep:
        micro_batch_rows = None
        if self.config.micro_batch_tokens is not None:
            micro_batch_rows = max(1, self.config.micro_batch_tokens // batch.input_ids.shape[1])
        max_norm = self.optimizer_config.gradient_clipping_by_norm
        return TrainStep(self.model, self.optimizers, self.seed, max_norm, micro_batch_rows)

    def _set_learning_rate(self) -> float:
        peak = self.optimizer_config.learning_rate
        learning_rate = compute_learning_rate(self.schedule_config, peak, self.state.step, self.progress)
        self.optimizers.set_learning_rate(learning_rate, peak)
        return learning_rate

    def _log(self, measured: dict[str, float], settings: dict[str, float]) -> None:
        state = self.state
        if not math.isfinite(measured["loss"]) or not math.isfinite(measured["grad_norm"]):
            raise RunError(
                f"the loss is {measured['loss']} (gradient norm {measured['grad_norm']}) at step {state.step} with"
                f" learning rate {settings['lr']:.2e}; lower optimizer.learning_rate or"
                " optimizer.gradient_clipping_by_norm and resume from the last checkpoint"
            )
        place = {"step": state.step, "epoch": state.epoch, "tokens": state.num_tokens}
        metrics = {**place, **measured, **settings, "progress": self.progress, "elapsed_s": state.elapsed_s}
        for callback in self._callbacks:
            callback.on_log(metrics)


def _iterate(batches: Batches, epoch: int, start_batch: int) -> Iterator[PackedBatch]:
    if hasattr(batches, "epoch"):
        yield from batches.epoch(epoch, start_batch)
    else:
        yield from map(as_packed, islice(iter(batches), start_batch, None))


def _count_batches(batches: Batches) -> int | None:
    return len(batches) if isinstance(batches, Sized) else None
