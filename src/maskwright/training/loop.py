"""The training loop, top to bottom.

    for every epoch:
        for every batch of the epoch, in an order that is a function of (seed, epoch):
            set the learning rate and the mask ratio from the run's progress
            corrupt the batch, differentiate the loss, clip, step (nothing changes if that is not finite)
            all processes agree on the time and on whether to stop
            now and then: log, evaluate; callbacks may checkpoint or stop the run
            end when the budget of steps, tokens or seconds is spent
        evaluate on the validation set; callbacks see the epoch's metrics

Masks are a function of (seed, epoch, sample, position), the order of (seed, epoch), dropout of (seed, step, rank): no
generator has state to save, and a resumed run repeats an uninterrupted one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Literal

from maskwright.batch import PackedBatch, concatenate
from maskwright.errors import BadStepsError, InputError
from maskwright.objectives.objective import Objective
from maskwright.sections.training import OptimizerConfig, ScheduleConfig, TrainingConfig
from maskwright.training import arguments
from maskwright.training.batches import (
    Batches,
    advise_faster,
    check_ids,
    count_batches,
    group_batches,
    iterate_batches,
    pad_to_few_shapes,
)
from maskwright.training.checkpoint_parts import PartContents, prepare_parts
from maskwright.training.checkpoint_writer import CheckpointWriter, LateWrites
from maskwright.training.checkpoints import CheckpointContents, Retention
from maskwright.training.compute.device import keeping_freed_memory
from maskwright.training.distributed.world import agree
from maskwright.training.engine import Engine
from maskwright.training.held_out import Evaluation, evaluate, evaluate_parts
from maskwright.training.meter import Meter, StepRecord, WaitWatch, describe_bad_steps
from maskwright.training.micro_batches import MicroBatches
from maskwright.training.optim.builders import BuiltOptimizer
from maskwright.training.state import Budget, History, TrainingState, build_budget, count_batches_per_step
from maskwright.training.step import StepResult

Metrics = Mapping[str, float]


class Callback:
    """Hooks of the training loop, named as Keras names them; override those you need.

    `trainer` gives the model and the state; `trainer.stop_training = True` ends the run.

    Metrics of a single step stay on the device; `on_log` gets them as numbers every `log_every_steps` and at the end
    of an epoch.
    """

    trainer: TrainingLoop
    on_every_rank = False
    """Whether all processes call it, not only the main one; needed to save checkpoints or to evaluate."""

    def on_train_begin(self) -> None: ...

    def on_step_end(self, step: int) -> None: ...

    def on_log(self, metrics: Metrics) -> None: ...

    def on_evaluation(self, metrics: Metrics) -> None:
        """After an evaluation inside an epoch (`evaluate_every_steps`)."""

    def on_epoch_evaluation_begin(self) -> None:
        """The steps of an epoch are done, and its evaluation begins."""

    def on_epoch_end(self, epoch: int, metrics: Metrics) -> None: ...

    def on_train_end(self) -> None:
        """The model has its final weights."""

    def on_warning(self, message: str) -> None:
        """A warning for the user, such as a checkpoint that could not be written."""

    def close(self) -> None:
        """Called last, also when the run ended with an error."""


class TrainingLoop:
    """Trains a model on batches, in this process or in all that `torchrun` started, and calls callbacks on the way."""

    def __init__(
        self,
        model: Objective,
        optimizer: OptimizerConfig | BuiltOptimizer | None = None,
        schedule: ScheduleConfig | None = None,
        training: TrainingConfig | None = None,
        *,
        mask_ratio: Callable[[float], float] | None = None,
        seed: int = 0,
    ) -> None:
        """`mask_ratio` gives the ratio at a progress in [0, 1]; without it the model's own ratio stays."""
        arguments.check_parts(model, optimizer=optimizer, schedule=schedule, training=training)
        arguments.check_number("seed", seed)
        if mask_ratio is not None and not callable(mask_ratio):
            raise InputError(
                f"mask_ratio is {mask_ratio!r}; expected a function of the progress in [0, 1]; a constant ratio is"
                " set as model.mask_ratio"
            )
        if isinstance(optimizer, BuiltOptimizer):
            schedule, optimizer = optimizer.schedule, optimizer.config
        self.model = model
        self.config = training or TrainingConfig()
        self.engine = Engine(model, optimizer or OptimizerConfig(), schedule or ScheduleConfig(), self.config, seed)
        self.world, self.optimizers = self.engine.world, self.engine.optimizers
        self.state = TrainingState()
        self.history = History()
        self.first_step_s: float | None = None
        self.last_result: StepResult
        """The result of the last step, on the device."""
        self.learning_rate = 0.0
        self.stop_training = False
        self.received_signal = 0
        self.agreed_signal = 0
        self.budget: Budget
        self.metric_names: tuple[str, ...] = ()
        self.compute_mask_ratio: Callable[[float], float | None] = mask_ratio or (lambda progress: model.mask_ratio)
        is_alone = self.world.size == 1
        self.evaluation_batches = MicroBatches(
            None if is_alone else self.config.micro_batch_tokens, is_alone, self.warn, is_training=False
        )
        self._callbacks: Sequence[Callback] = ()
        self._writer = CheckpointWriter(self.warn)
        self.late_writes = LateWrites(self.warn)
        """Files of callbacks that a full disk refused."""
        self._meter: Meter | None = None
        self._wait_watch = WaitWatch()
        self._faster_advice = ""
        self._is_resuming = False
        self._too_small: set[str] = set()

    def run(
        self,
        train: Batches,
        validation: Batches | None,
        callbacks: Sequence[Callback],
        epochs: int | None = None,
        initial_epoch: int | None = None,
    ) -> History:
        """Train until `epochs` or the budget is reached; the model is left in evaluation mode."""
        epochs = self.config.epochs if epochs is None else epochs
        self._callbacks = [callback for callback in callbacks if callback.on_every_rank or self.world.is_main]
        self._begin(train, validation, epochs, initial_epoch)
        if self.engine.is_recorded:
            train = pad_to_few_shapes(train)
        with keeping_freed_memory(self.engine.device), ExitStack() as stack:
            stack.callback(self._finish_files)
            for callback in self._callbacks:
                stack.callback(callback.close)
                callback.trainer = self
                callback.on_train_begin()
            while self.state.epoch < epochs and not self.stop_training:
                epoch = self.state.epoch
                self._train_epoch(train, validation)
                metrics = self._end_epoch(train, validation, epochs)
                self.agree_on_signal()
                for callback in self._callbacks:
                    callback.on_epoch_end(epoch, metrics)
                self._agree_to_stop()
            self.engine.finish()
            for callback in self._callbacks:
                callback.on_train_end()
            self.engine.placed.scatter()  # a callback may have gone back to other weights
        return self.history

    def evaluate(self, batches: Batches) -> dict[str, float]:
        """The model's metrics on held-out batches, under masks that are the same each time."""
        arguments.check_batches("batches", batches)
        return self.measure(batches).metrics

    def measure(self, batches: Batches) -> Evaluation:
        """As `evaluate`, with the figures of each source of the batches."""
        return self._run_evaluation(batches, 0)

    def save_checkpoint(
        self,
        folder: str | Path,
        tokenizer: Any = None,
        retention: Retention | None = None,
        *,
        background: bool = False,
    ) -> Path:
        """Write `folder/step-N`; all processes must call this, one writes, or with FSDP each what it has.

        In the background a failure is a warning.
        """
        folder = Path(folder)
        if self._meter is not None:
            self._meter.fetch()
        self._writer.finish()  # before the copies are made, so that memory holds those of one checkpoint
        self._writer.forget_failed()
        contents: CheckpointContents | PartContents | None
        if self.engine.placed.writes_parts and prepare_parts(folder, self.state.step, self.world):
            contents = self.engine.collect_parts(self.state, self.history, tokenizer)
        else:
            contents = self.engine.collect_contents(self.state, self.history, tokenizer)
        if contents is not None:
            self._writer.write(folder, contents, retention, background)
        return Path(folder) / f"step-{self.state.step}"

    def load_checkpoint(self, checkpoint: str | Path) -> None:
        """Load a checkpoint; the next `fit` resumes the run from it."""
        stored = self.engine.load(Path(checkpoint), optimizer="kept")
        self.state, self.history = stored.state, stored.history
        self._is_resuming = True

    def continue_from(self, checkpoint: str | Path, optimizer: Literal["fresh", "kept"] = "fresh") -> None:
        """Start a new run, with a new schedule, from a checkpoint's weights, and its optimizer state if `kept`."""
        self.engine.load(Path(checkpoint), optimizer)

    def roll_back(self, checkpoint: str | Path) -> None:
        """Return to a checkpoint's weights, optimizer and step; the batches since then are not repeated."""
        self.state.step = self.engine.load(Path(checkpoint), optimizer="kept").state.step
        self.state.bad_streak = 0

    def finish_writing(self) -> None:
        """Wait until checkpoints written in the background are complete and all processes can read them."""
        self._finish_files()
        self.world.sum_facts([0.0])

    def _finish_files(self) -> None:
        self._writer.finish()
        self.late_writes.retry()

    def retry_checkpoint(self) -> None:
        """In the main process: write the newest checkpoint if that failed; raises RunError if it fails again."""
        self._writer.retry()

    def agree_on_signal(self) -> int:
        """The signal that any process received and that asks the run to end, or 0; all processes call it."""
        self.agreed_signal = agree(self.world, 0.0, False, self.received_signal).signal
        return self.agreed_signal

    def averaged_weights(self) -> AbstractContextManager[None]:
        """Inside the block, the model has the averaged weights, if there is an average."""
        return self.engine.averaged_weights()

    def measure_epoch(self) -> dict[str, float]:
        """The model's metrics over the epoch so far; this waits for the device."""
        if self._meter is not None:
            self._meter.fetch()
        return self.model.compute_metrics(self.state.epoch_sums or [0.0] * self.model.num_sums)

    def warn(self, message: str) -> None:
        """Pass a warning for the user to all callbacks."""
        for callback in self._callbacks:
            callback.on_warning(message)

    @property
    def progress(self) -> float:
        return self.budget.progress(self.state)

    def _begin(self, train: Batches, validation: Batches | None, epochs: int, initial_epoch: int | None) -> None:
        initial_epoch = self.config.initial_epoch if initial_epoch is None else initial_epoch
        arguments.check_number("epochs", epochs)
        arguments.check_number("initial_epoch", initial_epoch)
        arguments.check_batches("train", train)
        if validation is not None:
            arguments.check_batches("validation", validation)
        if epochs <= initial_epoch:
            raise InputError(f"epochs is {epochs}, initial_epoch {initial_epoch}; epochs must be the larger")
        arguments.check_fit(self.model, train, validation)
        self.budget = build_budget(count_batches(train), epochs - initial_epoch, self.config)
        if not self._is_resuming:
            self.state, self.history = TrainingState(epoch=initial_epoch), History()
        self._is_resuming = False
        self._too_small.clear()
        self._wait_watch, self._faster_advice = WaitWatch(), advise_faster(train)
        self.engine.settle_precision(self.state)
        self.stop_training = self.budget.is_spent(self.state) and self.state.batch_in_epoch == 0
        self.received_signal = self.agreed_signal = 0
        names = tuple(self.model.compute_metrics([0.0] * self.model.num_sums))
        self.metric_names = names if validation is None else (*names, *(f"val_{name}" for name in names))

    def _train_epoch(self, train: Batches, validation: Batches | None) -> None:
        state, config = self.state, self.config
        train_step = self.engine.begin(state, self.warn)
        self._meter = meter = Meter(self.model, state, self.engine.device)
        # A run may have been saved after its last step; then nothing but the end of the epoch is left to do.
        self.stop_training |= self.budget.is_spent(state)
        begun_s = time.monotonic() - state.elapsed_s
        for group, is_last in self._read_steps(train, meter):
            batch = concatenate(group)
            check_ids(batch, self.model.vocab_size)
            learning_rate = self.engine.set_learning_rate(state.step, self.progress)
            mask_ratio = self.compute_mask_ratio(self.progress)
            device = self.engine.device
            on_device = batch.to(device, non_blocking=device.type == "cuda")
            step_begun_s = time.monotonic()
            result = train_step(
                on_device, step=state.step, epoch=state.epoch, mask_ratio=mask_ratio, progress=self.progress
            )
            if self.first_step_s is None:
                self.first_step_s = time.monotonic() - step_begun_s
                if self.engine.is_compiled:  # compiling is not training, schedules would lose their beginning to it
                    begun_s += self.first_step_s
            self.last_result, self.learning_rate = result, learning_rate
            meter.add(result, StepRecord(state.step, learning_rate, batch.sample_ids))
            state.step += 1
            state.batch_in_epoch += len(group)
            state.num_batches += len(group)
            state.num_places += batch.input_ids.numel() * self.world.size
            is_last |= self._agree(time.monotonic() - begun_s)
            if is_last or self._is_due(config.log_every_steps, config.checkpoint_every_steps):
                self._log(meter, {"lr": learning_rate, "mask_ratio": mask_ratio or 0.0})
            if validation is not None and not is_last and self._is_due(config.evaluate_every_steps):
                self._evaluate_now(validation, meter)
            for callback in self._callbacks:
                callback.on_step_end(state.step)
            self.late_writes.retry()
            if self._agree_to_stop():
                break
        meter.fetch()
        self.engine.note_loss_scale(state)
        self._meter = None
        is_lost = not any(state.epoch_sums[len(self.model.part_weights) :])
        if meter.last_bad is not None and is_lost:
            raise BadStepsError(describe_bad_steps(state.bad_streak, meter.last_bad))

    def _read_steps(self, train: Batches, meter: Meter) -> Iterator[tuple[list[PackedBatch], bool]]:
        """The batches of each remaining step of the epoch, and whether it is the last step."""
        state = self.state
        if self.stop_training:
            return
        batches = iterate_batches(train, state.epoch, state.batch_in_epoch, self.world)
        groups = group_batches(batches, lambda: count_batches_per_step(self.config, self.progress))
        yield from meter.time_waits(groups)
        if state.batch_in_epoch == 0:
            raise InputError(
                f"the training data gave no batch in epoch {state.epoch + 1}; give a list or a loader that can be read"
                " again for every epoch"
            )

    def _agree(self, elapsed_s: float) -> bool:
        """Share the verdict of all processes after a step; returns whether it is the run's last."""
        verdict = agree(self.world, elapsed_s, self.stop_training, self.received_signal)
        # A signal may come while the processes talk; it stays in `received_signal` for the next time.
        self.state.elapsed_s, self.agreed_signal = verdict.elapsed_s, verdict.signal
        self.stop_training = verdict.stop or self.budget.is_spent(self.state)
        return self.stop_training

    def _agree_to_stop(self) -> bool:
        """A callback of the main process alone may have stopped the run; then all processes stop here."""
        self.stop_training = self.world.sum_facts([float(self.stop_training)])[0] > 0
        return self.stop_training

    def _is_due(self, *intervals: int | None) -> bool:
        return any(interval and self.state.step % interval == 0 for interval in intervals)

    def _end_epoch(self, train: Batches, validation: Batches | None, epochs: int) -> dict[str, float]:
        sums = self.state.epoch_sums or [0.0] * self.model.num_sums
        if self._asks(sums):
            metrics = self.model.compute_metrics(sums)
        else:
            metrics = self._measure_whole(train, "training", self.state.epoch, max(1, self.state.batch_in_epoch))
        if validation is not None:
            for callback in self._callbacks:
                callback.on_epoch_evaluation_begin()
            metrics |= self._evaluate(validation)
        self.history.append(metrics)
        self.state.begin_epoch(self.state.epoch + 1)
        self.stop_training |= self.state.epoch >= epochs
        return metrics

    def _evaluate_now(self, validation: Batches, meter: Meter) -> None:
        meter.fetch()  # so that the line's tokens are those of its step
        metrics = self._evaluate(validation, self.config.evaluate_max_batches)
        for callback in self._callbacks:
            callback.on_evaluation(metrics)

    def _evaluate(self, validation: Batches, max_batches: int | None = None) -> dict[str, float]:
        evaluation = self._run_evaluation(validation, 0, max_batches=max_batches)
        metrics = evaluation.metrics
        if self.model.mask_ratio is not None and not evaluation.num_masked:
            metrics = self._measure_whole(validation, "validation", 0, max_batches)
        return {f"val_{name}": value for name, value in metrics.items()}

    def _run_evaluation(self, data: Batches, epoch: int, **options: Any) -> Evaluation:
        options |= {"placed": self.engine.placed, "world": self.world, "micro_batches": self.evaluation_batches}
        parts: Mapping[str, Batches] = getattr(data, "parts", {})
        with self.averaged_weights():
            if not parts:
                return evaluate(self.model, iterate_batches(data, epoch, world=self.world), **options)
            named = {name: iterate_batches(part, epoch, world=self.world) for name, part in parts.items()}
            return evaluate_parts(self.model, named, **options)

    def _asks(self, sums: Sequence[float]) -> bool:
        """Whether the model must answer anything; without masking, as in a task, every batch counts."""
        return self.model.mask_ratio is None or sums[len(self.model.part_weights)] > 0

    def _measure_whole(self, data: Batches, name: str, epoch: int, max_batches: int | None) -> dict[str, float]:
        """Evaluate with every token masked, for texts so short that no token was masked."""
        evaluation = self._run_evaluation(data, epoch, mask_ratio=1.0, max_batches=max_batches)
        if not evaluation.num_masked:
            raise InputError(
                f"no token of the {name} data can be asked for: all are special tokens or padding; check the tokenizer"
                " and the model's special_token_ids"
            )
        if name not in self._too_small:  # once, as it will happen again
            self._too_small.add(name)
            self.warn(
                f"epoch {self.state.epoch + 1}: none of the {evaluation.num_masked} tokens of the {name} data was"
                " chosen, so its figures are those with all of them masked; give more text"
            )
        return evaluation.metrics

    def _log(self, meter: Meter, settings: dict[str, float]) -> None:
        state = self.state
        measured, num_bad = meter.collect()
        if meter.longest_bad_streak >= self.config.max_bad_steps and meter.last_bad is not None:
            raise BadStepsError(describe_bad_steps(meter.longest_bad_streak, meter.last_bad))
        if num_bad:
            self.warn(f"step {state.step}: {num_bad} steps were skipped, as their loss or gradient was not finite")
        slow_share = self._wait_watch.find_slow_share(state.elapsed_s, measured["data_wait"])
        if slow_share is not None:
            self.warn(f"{slow_share:.0%} of the time went into waiting for data; {self._faster_advice}")
        self._writer.check()
        if not num_bad and not self._asks(state.log_sums):
            return  # no token was chosen since the last line, so there is no loss to tell
        place = {"step": state.step, "epoch": state.epoch, "tokens": state.num_tokens}
        metrics = {**place, **measured, **settings, "progress": self.progress, "elapsed_s": state.elapsed_s}
        for callback in self._callbacks:
            callback.on_log(metrics)
