"""The training loop, top to bottom.

    for every epoch:
        for every batch of the epoch, in an order that is a function of (seed, epoch):
            set the learning rate and the mask ratio from the run's progress
            corrupt the batch, differentiate the loss, clip, step
            now and then: log; callbacks may checkpoint or stop the run
            end when the budget of steps or seconds is spent
        evaluate on the validation set; callbacks see the epoch's metrics

Masks are a function of (seed, epoch, sample, position), the order of (seed, epoch), dropout of (seed, step): no
generator has state to save, and a resumed run repeats an uninterrupted one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from maskwright.errors import InputError, RunError
from maskwright.models.encoding import find_max_length
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.sections.training import OptimizerConfig, ScheduleConfig, TrainingConfig
from maskwright.training.batches import Batches, count_batches, iterate_batches, mark_last
from maskwright.training.budget import Budget
from maskwright.training.callbacks import Callback
from maskwright.training.checkpoints import load_checkpoint, save_checkpoint
from maskwright.training.device import choose_device
from maskwright.training.evaluate import evaluate
from maskwright.training.history import History
from maskwright.training.meter import Meter
from maskwright.training.optimizers import build_optimizers
from maskwright.training.progress import ProgressDisplay
from maskwright.training.schedules import compute_learning_rate
from maskwright.training.state import TrainingState
from maskwright.training.step import TrainStep


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
        self.metric_names: tuple[str, ...] = ()
        self._mask_ratio = mask_ratio or (lambda progress: model.mask_ratio)
        self._callbacks: Sequence[Callback] = ()
        self._meter: Meter | None = None
        self._is_resuming = False

    def fit(
        self,
        train: Batches,
        validation: Batches | None = None,
        epochs: int | None = None,
        callbacks: Sequence[Callback] = (),
        initial_epoch: int = 0,
        verbose: bool = True,
    ) -> History:
        """Train until `epochs` or the budget of the configuration is reached.

        Each call is a run of its own, with its own schedule and history, on the weights and optimizer state there are;
        only after `load_checkpoint` it goes on with the run that was saved. `verbose` shows live progress. The model
        is left in evaluation mode.
        """
        if verbose and not any(isinstance(callback, ProgressDisplay) for callback in callbacks):
            callbacks = [ProgressDisplay(), *callbacks]
        epochs = self.config.epochs if epochs is None else epochs
        self._begin(train, validation, epochs, callbacks, initial_epoch)
        with ExitStack() as stack:
            for callback in callbacks:
                stack.callback(callback.close)
                callback.trainer = self
                callback.on_train_begin()
            while self.state.epoch < epochs and not self.stop_training:
                epoch = self.state.epoch
                self._train_epoch(train)
                metrics = self._end_epoch(validation)
                for callback in callbacks:
                    callback.on_epoch_end(epoch, metrics)
            for callback in callbacks:
                callback.on_train_end()
        self.model.eval()
        return self.history

    def save_checkpoint(self, folder: Path, tokenizer: Any = None, keep: int | None = None) -> Path:
        if self._meter is not None:
            self._meter.fetch()
        return save_checkpoint(folder, self.model, self.optimizers, self.state, self.history, tokenizer, keep)

    def load_checkpoint(self, checkpoint: Path) -> None:
        """Go on from a checkpoint: the next `fit` continues where it was taken."""
        self.state, self.history = load_checkpoint(checkpoint, self.model, self.optimizers)
        self._is_resuming = True

    @property
    def progress(self) -> float:
        return self.budget.progress(self.state.step, self.state.elapsed_s)

    @property
    def is_spent(self) -> bool:
        return self.budget.is_spent(self.state.step, self.state.elapsed_s)

    def _begin(
        self,
        train: Batches,
        validation: Batches | None,
        epochs: int,
        callbacks: Sequence[Callback],
        initial_epoch: int,
    ) -> None:
        if epochs <= initial_epoch:
            raise InputError(f"epochs is {epochs}, initial_epoch {initial_epoch}; epochs must be the larger")
        limit, row_length = find_max_length(self.model.encoder), getattr(train, "row_length", 0)
        if limit is not None and row_length > limit:
            raise InputError(f"rows have {row_length} tokens, the model has {limit} positions; shorten the rows")
        if isinstance(validation, Iterator):
            raise InputError("the validation data can be read only once; give a list or a loader")
        self.budget = self._build_budget(train, epochs - initial_epoch)
        if not self._is_resuming:
            self.state, self.history = TrainingState(epoch=initial_epoch), History()
        self._is_resuming = False
        self.stop_training = self.is_spent and self.state.batch_in_epoch == 0
        names = tuple(self.state.epoch_metrics())
        self.metric_names = names if validation is None else (*names, *(f"val_{name}" for name in names))
        self._callbacks = callbacks
        self.model.train()

    def _build_budget(self, train: Batches, num_epochs: int) -> Budget:
        steps_per_epoch = count_batches(train)
        if steps_per_epoch == 0:
            raise InputError("the training data holds no batch")
        if steps_per_epoch is None and self.config.max_steps is None and self.config.max_seconds is None:
            raise InputError("the training data has no length; set training.max_steps or training.max_seconds")
        expected_steps = math.inf if steps_per_epoch is None else steps_per_epoch * num_epochs
        return Budget(
            min(expected_steps, self.config.max_steps or math.inf), self.config.max_steps, self.config.max_seconds
        )

    def _train_epoch(self, train: Batches) -> None:
        state, config = self.state, self.config
        max_norm = self.optimizer_config.gradient_clipping_by_norm
        train_step = TrainStep(self.model, self.optimizers, self.seed, max_norm, config.micro_batch_tokens)
        self._meter = meter = Meter(state, self.device)
        begun = time.monotonic() - state.elapsed_s
        # A run may have been saved after its last step; then nothing but the end of the epoch is left to do.
        self.stop_training |= self.is_spent
        batches = () if self.stop_training else iterate_batches(train, state.epoch, state.batch_in_epoch)
        for batch, is_last in mark_last(batches):
            learning_rate, mask_ratio = self._set_learning_rate(), self._mask_ratio(self.progress)
            on_device = batch.to(self.device, non_blocking=True)
            result = train_step(on_device, step=state.step, epoch=state.epoch, mask_ratio=mask_ratio)
            meter.add(result, batch.num_tokens())
            state.step += 1
            state.batch_in_epoch += 1
            state.elapsed_s = time.monotonic() - begun
            self.stop_training |= self.is_spent
            # A line at every checkpoint keeps a run that went wrong from being saved.
            is_due = state.step % config.log_every_steps == 0 or state.step % config.checkpoint_every_steps == 0
            if is_due or is_last or self.stop_training:
                self._log(meter.collect(), {"lr": learning_rate, "mask_ratio": mask_ratio})
            for callback in self._callbacks:
                callback.on_step_end(state.step)
            if self.stop_training:
                break
        if state.batch_in_epoch == 0:
            raise InputError(
                f"the training data gave no batch in epoch {state.epoch + 1}; give a list or a loader that can be read"
                " again for every epoch"
            )
        meter.fetch()
        self._meter = None

    def _end_epoch(self, validation: Batches | None) -> dict[str, float]:
        metrics = self.state.epoch_metrics()
        if validation is not None:
            evaluation = evaluate(self.model, iterate_batches(validation))
            metrics |= {"val_loss": evaluation.loss, "val_mlm_accuracy": evaluation.accuracy}
        self.history.append(metrics)
        self.state.begin_epoch(self.state.epoch + 1)
        return metrics

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
