"""Callbacks for checkpoints, early stopping and TensorBoard, with the names and arguments of Keras."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from maskwright.errors import InputError
from maskwright.objectives.loss import as_sum
from maskwright.storage import count_free_bytes, naming, restore_folder, whole_folder
from maskwright.suggestions import refuse_arguments
from maskwright.training.loop import Callback, Metrics, TrainingLoop

Mode = Literal["auto", "min", "max"]
_BETTER: dict[str, Literal["min", "max"]] = {
    **dict.fromkeys(("loss", "perplexity", "error"), "min"),
    **dict.fromkeys(("accuracy", "auc", "precision", "recall", "f1", "exact", "match"), "max"),
    **dict.fromkeys(("matthews", "pearson", "spearman", "score"), "max"),
}
"""Whether a lower or a higher value is better, by the last word of a metric's name: `val_mlm_accuracy`, `macro_f1`."""
_MOST_PENDING = 1_000
_BLOCK_BYTES, _EVENT_BYTES = 4_096, 256
"""More than a scalar takes in TensorBoard's file, which grows by blocks of the disk."""
_NO_SILENCE = "fit(verbose=True) shows the run's progress; to be told more, override a hook of Callback"


class ModelCheckpoint(Callback):
    """Saves the whole model as a folder after each epoch, or with an integer `save_freq` after so many steps.

    `{epoch:02d}` (from 1) and metrics fill the name, with an integer also `{step}` and `{batch}`, the place in the
    epoch. Inside an epoch metrics are those of the epoch so far, and none of the validation set is known.
    """

    on_every_rank = True

    def __init__(
        self,
        filepath: str | Path,
        monitor: str = "val_loss",
        save_best_only: bool = False,
        mode: Mode = "auto",
        tokenizer: Any = None,
        save_freq: int | Literal["epoch"] = "epoch",
        **others: Any,
    ) -> None:
        refuse_arguments(ModelCheckpoint, others, _CHECKPOINT_INSTEAD)
        self.filepath = str(filepath)
        self.save_best_only = save_best_only
        self.tokenizer = tokenizer
        self.save_freq = _check_frequency("save_freq", save_freq, ("epoch",))
        self._best = _Best(monitor, mode)

    def on_train_begin(self) -> None:
        names = self.trainer.metric_names
        if self.save_freq != "epoch":
            names = tuple(name for name in names if not name.startswith("val_"))
        if self.save_best_only:
            self._best.check(names, "" if self.save_freq == "epoch" else "; with save_freq='epoch' there are more")
            self._best.replay(self.trainer.history.history)
        self._name({"epoch": 0, "step": 0, "batch": 0}, dict.fromkeys(names, 0.0))

    def on_step_end(self, step: int) -> None:
        if self.save_freq != "epoch" and step % self.save_freq == 0:
            state = self.trainer.state
            place = {"epoch": state.epoch + 1, "step": step, "batch": state.batch_in_epoch}
            self._save(place, self.trainer.measure_epoch())

    def on_epoch_end(self, epoch: int, metrics: Metrics) -> None:
        if self.save_freq == "epoch":
            self._save({"epoch": epoch + 1}, metrics)

    def _save(self, place: Mapping[str, int], metrics: Metrics) -> None:
        if self.save_best_only and not self._best.improves(metrics):
            return
        with self.trainer.averaged_weights():
            if self.trainer.world.is_main:
                self.trainer.model.save_pretrained(self._name(place, metrics), self.tokenizer)

    def _name(self, place: Mapping[str, int], metrics: Metrics) -> str:
        place = {"epoch": place["epoch"]} if self.save_freq == "epoch" else place
        try:
            return self.filepath.format(**place, **metrics)
        except (KeyError, IndexError, ValueError) as error:
            raise InputError(
                f"ModelCheckpoint cannot fill the name '{self.filepath}' ({error});"
                f" known are {', '.join([*place, *metrics])}, as in 'model_{{epoch:02d}}'"
            ) from error


def write_weights(trainer: TrainingLoop, folder: Path) -> None:
    """Replace the model in a folder with the current one; if the disk is full, as soon as there is room."""
    snapshot = trainer.model.snapshot()

    def write() -> None:
        with naming(folder), whole_folder(folder) as temporary:
            snapshot.write(temporary)

    trainer.late_writes.write(folder, write, snapshot.num_bytes)


class EarlyStopping(Callback):
    """Ends the run when `monitor` has not improved for `patience` epochs.

    Whether higher or lower is better follows from the metric's name; for other metrics, set `mode`. With `best_folder`
    the weights of the best epoch are kept on disk as well, so that a resumed run can go back to an epoch before the
    interruption.
    """

    on_every_rank = True

    def __init__(
        self,
        monitor: str = "val_loss",
        patience: int = 0,
        min_delta: float = 0.0,
        mode: Mode = "auto",
        restore_best_weights: bool = False,
        best_folder: str | Path | None = None,
        **others: Any,
    ) -> None:
        refuse_arguments(EarlyStopping, others, _STOPPING_INSTEAD)
        if not isinstance(patience, int) or patience < 0:
            raise InputError(f"patience is {patience!r}; it must be a number of epochs, 0 or more")
        self.patience = patience
        self.restore_best_weights = restore_best_weights
        self.best_folder = None if best_folder is None else Path(best_folder)
        self.stopped_epoch: int | None = None
        self._best = _Best(monitor, mode, min_delta)
        self._num_waits = 0
        self._best_weights: dict[str, torch.Tensor] | None = None
        self._is_resumed = False

    def on_train_begin(self) -> None:
        """Reset, or restore the state of a resumed run."""
        self._best.check(self.trainer.metric_names)
        self._best.reset()
        self._num_waits, self._best_weights, self.stopped_epoch = 0, None, None
        earlier = self.trainer.history.history.get(self._best.monitor, [])
        self._is_resumed = bool(earlier)
        for value in earlier:
            self._count_wait({self._best.monitor: value})
        # A run that was stopped here and then interrupted before its end is not trained further.
        self.trainer.stop_training |= self._is_over

    def on_epoch_end(self, epoch: int, metrics: Metrics) -> None:
        self._count_wait(metrics)
        if self._num_waits == 0 and self.restore_best_weights:
            self._keep_weights()
        elif self._is_over:
            self.stopped_epoch = epoch
            self.trainer.stop_training = True

    @property
    def _is_over(self) -> bool:
        return self._num_waits >= max(self.patience, 1)

    def _keep_weights(self) -> None:
        with self.trainer.averaged_weights():
            state = self.trainer.model.state_dict()
            self._best_weights = {name: tensor.detach().clone() for name, tensor in state.items()}
            if self.best_folder is not None and self.trainer.world.is_main:
                write_weights(self.trainer, self.best_folder)

    def _count_wait(self, metrics: Metrics) -> None:
        self._num_waits = 0 if self._best.improves(metrics) else self._num_waits + 1

    def on_train_end(self) -> None:
        if self._best_weights is not None:
            self.trainer.model.load_state_dict(self._best_weights)
        elif self._is_resumed and self.best_folder is not None:
            restore_folder(self.best_folder)
            if self.best_folder.is_dir():
                self.trainer.model.load_weights(self.best_folder)


class TensorBoard(Callback):
    """Scalars for TensorBoard: per epoch, and as `update_freq` says inside epochs.

    `"batch"` writes the metrics of every step, an integer their means over so many steps, `"log"` the log lines
    (`training.log_every_steps`). Nothing waits for the device: steps are written when a log line is due.
    """

    def __init__(
        self,
        log_dir: str | Path = "logs",
        update_freq: int | Literal["epoch", "batch", "log"] = "epoch",
        **others: Any,
    ) -> None:
        refuse_arguments(TensorBoard, others, _TENSORBOARD_INSTEAD)
        self.update_freq = _check_frequency("update_freq", update_freq, ("epoch", "batch", "log"))
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise InputError("TensorBoard needs an extra: pip install 'maskwright[track]'") from error
        self._every = 1 if update_freq == "batch" else update_freq if isinstance(update_freq, int) else None
        self._sums: Tensor | None = None
        self._pending: list[tuple[int, float, Tensor]] = []
        """Step, learning rate, and on the device the sums since the last one, behind them the gradient's norm."""
        self.log_dir = Path(log_dir)
        self._open = SummaryWriter
        self._scalars: list[tuple[str, float, int, float]] = []  # name, value, step, time: not written yet
        with naming(self.log_dir):
            self._writer: Any = SummaryWriter(str(log_dir))

    def on_train_begin(self) -> None:
        self._sums, self._pending, self._is_closed = None, [], False

    def on_step_end(self, step: int) -> None:
        if self._every is None:
            return
        result = self.trainer.last_result
        sums = torch.where(result.skip > 0, 0.0, result.sums)
        self._sums = sums if self._sums is None else self._sums + sums
        if step % self._every == 0:
            facts = torch.cat([self._sums, as_sum(result.grad_norm).reshape(1)])
            self._pending.append((step, self.trainer.learning_rate, facts))
            self._sums = None
        if len(self._pending) >= _MOST_PENDING:
            self._write_steps()

    def on_log(self, metrics: Metrics) -> None:
        if self.update_freq == "log":
            self._add("step", metrics, int(metrics["step"]))
        self._write_steps()

    def on_epoch_end(self, epoch: int, metrics: Metrics) -> None:
        self._write_steps()
        self._add("epoch", metrics, epoch)
        self._write()

    def close(self) -> None:
        self._is_closed = True
        self._write_steps()
        self._close()

    def _write_steps(self) -> None:
        for step, learning_rate, facts in self._pending:
            *sums, grad_norm = facts.tolist()
            metrics = self.trainer.model.compute_metrics(sums)
            self._add("step", {**metrics, "lr": learning_rate, "grad_norm": grad_norm}, step)
        self._pending = []
        self._write()

    def _add(self, prefix: str, metrics: Metrics, step: int) -> None:
        names = [name for name in metrics if name not in ("step", "epoch")]
        self._scalars += [(f"{prefix}/{name}", metrics[name], step, time.time()) for name in names]

    def _write(self) -> None:
        if self._scalars:
            self.trainer.late_writes.write(self.log_dir, self._write_scalars, self._count_bytes())

    def _count_bytes(self) -> int:
        return _BLOCK_BYTES + _EVENT_BYTES * len(self._scalars)

    def _write_scalars(self) -> None:
        """Write all pending scalars; after a failure into a new file, since the old one may end in mid-scalar."""
        # The writer's thread prints a traceback when it finds the disk full, so it is not asked to write then.
        if count_free_bytes(self.log_dir) < self._count_bytes():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.log_dir))
        try:
            with naming(self.log_dir):
                self._writer = self._writer or self._open(str(self.log_dir))
                for name, value, step, time_s in self._scalars:
                    self._writer.add_scalar(name, value, step, walltime=time_s)
                self._writer.flush()
        except OSError:
            self._writer = None
            raise
        self._scalars = []
        if self._is_closed:
            self._close()

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            with naming(self.log_dir):
                writer.close()


_CHECKPOINT_INSTEAD = {
    "verbose": _NO_SILENCE,
    "save_weights_only": "a saved folder has the weights and the few lines that rebuild the model; leave it out",
    "initial_value_threshold": "save_best_only starts with the first value; leave it out",
    "options": "folders are written in one way; leave it out",
    "period": "use save_freq with a number of steps",
}
_STOPPING_INSTEAD = {
    "verbose": _NO_SILENCE,
    "baseline": "the first epoch's value is the baseline; leave it out",
    "start_from_epoch": "use a larger patience",
    "early_stopping_patience": "use patience=",
    "early_stopping_threshold": "use min_delta=",
}
_TENSORBOARD_INSTEAD = {
    "histogram_freq": "weights are not written; override on_epoch_end of Callback",
    "write_graph": "the graph is not written; leave it out",
    "write_images": "weights are not written; leave it out",
    "write_steps_per_second": "update_freq='log' writes tokens_per_s",
    "profile_batch": "profile with torch.profiler around fit",
    "embeddings_freq": "embeddings are not written; leave it out",
    "embeddings_metadata": "embeddings are not written; leave it out",
}


def _check_frequency(name: str, value: Any, words: tuple[str, ...]) -> Any:
    if value in words or (type(value) is int and value > 0):
        return value
    expected = " or ".join(f"'{word}'" for word in words)
    raise InputError(f"{name} is {value!r}; expected {expected}, or a number of steps")


class _Best:
    """The best value of one metric so far."""

    def __init__(self, monitor: str, mode: Mode, min_delta: float = 0.0) -> None:
        if mode not in ("auto", "min", "max"):
            raise InputError(f"mode is {mode!r}; expected 'min', 'max' or 'auto'")
        self.monitor = monitor
        known = _BETTER.get(str(monitor).rpartition("_")[2])
        self._is_known = mode != "auto" or known is not None
        self._sign = -1.0 if mode == "max" or (mode == "auto" and known == "max") else 1.0
        self._min_delta = abs(min_delta)
        self.reset()

    def reset(self) -> None:
        self._best = float("inf")

    def replay(self, history: Mapping[str, list[float]]) -> None:
        """Restore the state of a resumed run from its history."""
        self.reset()
        for value in history.get(self.monitor, []):
            self.improves({self.monitor: value})

    def check(self, names: Sequence[str], hint: str = "") -> None:
        """Refuse, before training, a metric that is missing, or not known to be better higher or lower."""
        if self.monitor not in names:
            has_validation = any(name.startswith("val_") for name in names)
            if not hint and str(self.monitor).startswith("val_") and not has_validation:
                hint = "; give fit a validation set"
            raise InputError(f"no metric '{self.monitor}' to watch, known are {', '.join(names)}{hint}")
        if not self._is_known:
            raise InputError(
                f"whether more or less '{self.monitor}' is better is not known; say mode='max' or mode='min'"
            )

    def improves(self, metrics: Metrics) -> bool:
        value = self._sign * metrics[self.monitor]
        if value < self._best - self._min_delta:
            self._best = value
            return True
        return False
