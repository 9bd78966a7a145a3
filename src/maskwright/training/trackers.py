"""Trackers: services that keep the metrics and settings of many runs. Each is optional and needs its own package."""

from __future__ import annotations

import json
import os
import uuid
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from maskwright.config import flatten
from maskwright.errors import InputError, RunError
from maskwright.storage import read_json, write_text
from maskwright.training.callbacks import TensorBoard
from maskwright.training.loop import Callback, Metrics

PROJECT = "maskwright"
"""Runs are grouped under this name, unless the tracker's own environment variable gives another."""

TRACKERS_FOLDER = "trackers"
"""In the run folder: the trackers' ids of the run, and what they write on this machine."""

_MODULES = {
    "tensorboard": ("torch.utils.tensorboard", "pip install 'maskwright[track]'"),
    "wandb": ("wandb", "pip install wandb"),
    "mlflow": ("mlflow", "pip install mlflow"),
    "trackio": ("trackio", "pip install trackio"),
}


def build_trackers(
    log_to: Iterable[str], *, name: str, folder: str | Path, parameters: Mapping[str, Any]
) -> list[Callback]:
    """A callback for each tracker; `name` and `parameters`, which may be nested, describe the run there.

    The run's `folder` keeps what a resumed run needs to continue the same record.
    """
    kinds: dict[str, Callable[[], Callback]] = {
        "tensorboard": lambda: TensorBoard(Path(folder) / "tensorboard", update_freq="log"),
        "wandb": lambda: WandB(name, folder, parameters),
        "mlflow": lambda: MLflow(name, folder, parameters),
        "trackio": lambda: Trackio(name, folder, parameters),
    }
    chosen = list(dict.fromkeys(log_to))
    check_trackers(chosen)
    return [kinds[service]() for service in chosen]


def check_trackers(log_to: Iterable[str]) -> None:
    """Refuse a tracker whose package is missing, before the run starts."""
    for service in log_to:
        _import(service)


def _import(service: str) -> ModuleType:
    module, command = _MODULES[service]
    try:
        return import_module(module)
    except ImportError as error:
        raise InputError(f"training.log_to asks for {service}, which needs a package: {command}") from error


class Tracker(Callback, ABC):
    """What the trackers share: when the run begins and ends there, and which metrics go there.

    The tracker's own id of the run is kept in the run folder, so that a resumed run continues under it. A tracker that
    cannot start is an error; one that fails later is disabled with a warning.
    """

    service: ClassVar[str]

    def __init__(self, name: str, folder: str | Path, parameters: Mapping[str, Any] | None = None) -> None:
        self.name = name
        self.folder = Path(folder)
        self.parameters = dict(parameters or {})
        self.package = _import(self.service)
        self._is_open = False
        self._has_failed = False
        self._is_complete = False

    @abstractmethod
    def begin(self, run_id: str | None) -> str:
        """Start the run in the tracker, or resume the one of `run_id`; returns the id for the next resume."""

    @abstractmethod
    def write(self, metrics: Metrics, step: int) -> None: ...

    @abstractmethod
    def finish(self, is_complete: bool) -> None: ...

    def on_train_begin(self) -> None:
        self._has_failed = self._is_complete = False
        ids = read_json(self._ids_file) if self._ids_file.is_file() else {}
        try:
            run_id = self.begin(ids.get(self.service))
        except Exception as error:
            raise RunError(f"{self.service} could not start: {_one_line(error)}") from error
        self._is_open = True
        self._ids_file.parent.mkdir(parents=True, exist_ok=True)
        write_text(self._ids_file, json.dumps({**ids, self.service: run_id}) + "\n")

    def on_log(self, metrics: Metrics) -> None:
        values = {name: value for name, value in metrics.items() if name != "step"}
        self._attempt(lambda: self.write(values, int(metrics["step"])))

    def on_evaluation(self, metrics: Metrics) -> None:
        self._write_validation(metrics)

    def on_epoch_end(self, epoch: int, metrics: Metrics) -> None:
        self._write_validation(metrics)

    def on_train_end(self) -> None:
        self._is_complete = True

    def close(self) -> None:
        if self._is_open:
            is_whole = self._is_complete and not self._has_failed
            self._is_open = self._has_failed = False
            self._attempt(lambda: self.finish(is_whole))

    def _write_validation(self, metrics: Metrics) -> None:
        values = {name: value for name, value in metrics.items() if name.startswith("val_")}
        if values:
            self._attempt(lambda: self.write(values, self.trainer.state.step))

    @property
    def _ids_file(self) -> Path:
        return self.folder / TRACKERS_FOLDER / "ids.json"

    def _attempt(self, act: Callable[[], None]) -> None:
        if self._has_failed:
            return
        try:
            act()
        except Exception as error:
            self._has_failed = True
            warnings.warn(
                f"{self.service} failed, and this run goes on without it: {_one_line(error)}; the run folder keeps"
                " the metrics, resume or repeat the run to have them there",
                stacklevel=2,
            )


class WandB(Tracker):
    """Weights & Biases; its environment variables apply, such as WANDB_MODE=offline and WANDB_PROJECT."""

    service = "wandb"

    def begin(self, run_id: str | None) -> str:
        # wandb leaves a folder that is missing aside and writes elsewhere.
        own_folder = self.folder / TRACKERS_FOLDER
        own_folder.mkdir(parents=True, exist_ok=True)
        run_id = run_id or uuid.uuid4().hex[:12]
        self._run = self.package.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            dir=str(own_folder),
            id=run_id,
            name=self.name,
            config={**self.parameters, "run_folder": str(self.folder)},
            resume="allow",
        )
        # Its own count of steps only rises, but a resumed run repeats those after its last checkpoint.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step", step_sync=True)
        return run_id

    def write(self, metrics: Metrics, step: int) -> None:
        self._run.log({**metrics, "step": step})

    def finish(self, is_complete: bool) -> None:
        self._run.finish(exit_code=0 if is_complete else 1)


class MLflow(Tracker):
    """MLflow; its environment variables apply, such as MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME."""

    service = "mlflow"

    def begin(self, run_id: str | None) -> str:
        run = self.package.start_run(run_id=run_id, run_name=self.name, tags={"run_folder": str(self.folder)})
        if run_id is None:
            self.package.log_params(flatten(self.parameters))
        return str(run.info.run_id)

    def write(self, metrics: Metrics, step: int) -> None:
        self.package.log_metrics(dict(metrics), step=step)

    def finish(self, is_complete: bool) -> None:
        self.package.end_run(status="FINISHED" if is_complete else "FAILED")


class Trackio(Tracker):
    """Trackio; its environment variables apply, such as TRACKIO_DIR and TRACKIO_SPACE_ID."""

    service = "trackio"

    def begin(self, run_id: str | None) -> str:
        """Trackio identifies runs by name, so another run with this name must not be resumed by mistake."""
        self._run = self.package.init(
            project=PROJECT,
            name=run_id or self.name,
            config={**flatten(self.parameters), "run_folder": str(self.folder)},
            resume="never" if run_id is None else "allow",
        )
        return str(self._run.name)

    def write(self, metrics: Metrics, step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def finish(self, is_complete: bool) -> None:
        self.package.finish()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
