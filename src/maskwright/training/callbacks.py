"""Parts that watch a run: override what you need, everything else does nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from maskwright.errors import InputError
from maskwright.storage import naming, restore_folder, whole_folder

if TYPE_CHECKING:
    from maskwright.training.trainer import Trainer

Metrics = Mapping[str, float]


class Callback:
    """Hooks of the training loop; `trainer` gives the model and the state, `trainer.stop_training = True` ends the run.

    Metrics of a single step stay on the device; `on_log` gets them as numbers every `log_every_steps` and at the end
    of an epoch.
    """

    trainer: Trainer
    on_every_rank = False
    """Of several processes only the main one calls a callback, unless this is set; one that saves checkpoints or
    evaluates needs it."""

    def on_train_begin(self) -> None: ...

    def on_step_end(self, step: int) -> None: ...

    def on_log(self, metrics: Metrics) -> None: ...

    def on_evaluation(self, metrics: Metrics) -> None:
        """After an evaluation inside an epoch (`evaluate_every_steps`)."""

    def on_epoch_end(self, epoch: int, metrics: Metrics) -> None: ...

    def on_train_end(self) -> None:
        """The model has its final weights."""

    def on_warning(self, message: str) -> None:
        """Something asks for attention, such as a checkpoint that could not be written."""

    def close(self) -> None:
        """Called last, also when the run ended with an error."""


class ModelCheckpoint(Callback):
    """Saves the whole model as a folder after each epoch; `{epoch:02d}` (from 1) and metrics fill the name."""

    on_every_rank = True

    def __init__(
        self,
        filepath: str | Path,
        monitor: str = "val_loss",
        save_best_only: bool = False,
        mode: Literal["auto", "min", "max"] = "auto",
        tokenizer: Any = None,
    ) -> None:
        self.filepath = str(filepath)
        self.save_best_only = save_best_only
        self.tokenizer = tokenizer
        self._best = _Best(monitor, mode)

    def on_train_begin(self) -> None:
        if self.save_best_only:
            self._best.check(self.trainer.metric_names)
            self._best.replay(self.trainer.history.history)
        self._name(0, dict.fromkeys(self.trainer.metric_names, 0.0))

    def on_epoch_end(self, epoch: int, metrics: Metrics) -> None:
        if self.save_best_only and not self._best.improves(metrics):
            return
        with self.trainer.averaged_weights():
            if self.trainer.world.is_main:
                self.trainer.model.save_pretrained(self._name(epoch, metrics), self.tokenizer)

    def _name(self, epoch: int, metrics: Metrics) -> str:
        try:
            return self.filepath.format(epoch=epoch + 1, **metrics)
        except (KeyError, IndexError, ValueError) as error:
            raise InputError(
                f"ModelCheckpoint cannot fill the name '{self.filepath}' ({error});"
                f" known are epoch, {', '.join(metrics)}, as in 'model_{{epoch:02d}}'"
            ) from error


class EarlyStopping(Callback):
    """Ends the run when `monitor` has not improved for `patience` epochs.

    With `best_folder` the weights of the best epoch are kept on disk as well, so that a resumed run can go back to an
    epoch before the interruption.
    """

    on_every_rank = True

    def __init__(
        self,
        monitor: str = "val_loss",
        patience: int = 0,
        min_delta: float = 0.0,
        mode: Literal["auto", "min", "max"] = "auto",
        restore_best_weights: bool = False,
        best_folder: str | Path | None = None,
    ) -> None:
        self.patience = patience
        self.restore_best_weights = restore_best_weights
        self.best_folder = None if best_folder is None else Path(best_folder)
        self.stopped_epoch: int | None = None
        self._best = _Best(monitor, mode, min_delta)
        self._num_waits = 0
        self._best_weights: dict[str, torch.Tensor] | None = None
        self._is_resumed = False

    def on_train_begin(self) -> None:
        """Start afresh, or where a resumed run stood."""
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
                with whole_folder(self.best_folder) as folder:
                    self.trainer.model.save_pretrained(folder)

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
    """Scalars for TensorBoard: per epoch, and with `update_freq="batch"` per log line too."""

    def __init__(self, log_dir: str | Path = "logs", update_freq: Literal["epoch", "batch"] = "epoch") -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise InputError("TensorBoard needs an extra: pip install 'maskwright[track]'") from error
        self.update_freq = update_freq
        self.log_dir = Path(log_dir)
        with naming(self.log_dir):
            self._writer = SummaryWriter(str(log_dir))

    def on_log(self, metrics: Metrics) -> None:
        if self.update_freq == "batch":
            self._write("step", metrics, int(metrics["step"]))

    def on_epoch_end(self, epoch: int, metrics: Metrics) -> None:
        self._write("epoch", metrics, epoch)

    def close(self) -> None:
        with naming(self.log_dir):
            self._writer.close()

    def _write(self, prefix: str, metrics: Metrics, step: int) -> None:
        with naming(self.log_dir):
            for name, value in metrics.items():
                if name not in ("step", "epoch"):
                    self._writer.add_scalar(f"{prefix}/{name}", value, step)


class _Best:
    """The best value of one metric so far."""

    def __init__(self, monitor: str, mode: Literal["auto", "min", "max"], min_delta: float = 0.0) -> None:
        self.monitor = monitor
        self._sign = -1.0 if mode == "max" or (mode == "auto" and monitor.endswith(("accuracy", "auc"))) else 1.0
        self._min_delta = abs(min_delta)
        self.reset()

    def reset(self) -> None:
        self._best = float("inf")

    def replay(self, history: Mapping[str, list[float]]) -> None:
        """Stand where a resumed run stood."""
        self.reset()
        for value in history.get(self.monitor, []):
            self.improves({self.monitor: value})

    def check(self, names: Sequence[str]) -> None:
        """Refuse a metric that the run will not have, before it starts."""
        if self.monitor not in names:
            hint = "; give fit a validation set" if self.monitor.startswith("val_") else ""
            raise InputError(f"no metric '{self.monitor}' to watch, known are {', '.join(names)}{hint}")

    def improves(self, metrics: Metrics) -> bool:
        value = self._sign * metrics[self.monitor]
        if value < self._best - self._min_delta:
            self._best = value
            return True
        return False
