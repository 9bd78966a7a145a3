"""The trackers against stand-ins that take exactly the arguments of the real packages.

The signatures are those of wandb 0.31, mlflow 3.17 and trackio 0.43.
"""

from __future__ import annotations

import inspect
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, get_args

import pytest

from maskwright.errors import InputError, RunError
from maskwright.sections.training import OptimizerConfig, TrainingConfig
from maskwright.training.callbacks import TensorBoard
from maskwright.training.loop import Callback
from maskwright.training.trackers import build_trackers, check_trackers
from maskwright.training.trainer import Trainer

SERVICES = ("wandb", "mlflow", "trackio")
SIGNATURES = {
    "wandb.init": "entity project dir id name notes tags config config_exclude_keys config_include_keys"
    " allow_val_change group job_type mode force reinit resume resume_from fork_from save_code tensorboard"
    " sync_tensorboard monitor_gym settings anonymous",
    "wandb.run.define_metric": "name step_metric step_sync hidden summary overwrite",
    "wandb.run.log": "data step commit",
    "wandb.run.finish": "exit_code",
    "mlflow.start_run": "run_id experiment_id run_name nested parent_run_id tags description log_system_metrics",
    "mlflow.log_params": "params synchronous run_id",
    "mlflow.log_metrics": "metrics step synchronous run_id timestamp model_id dataset",
    "mlflow.end_run": "status",
    "trackio.init": "project name group space_id server_url dataset_id bucket_id config resume settings private embed"
    " auto_log_gpu gpu_log_interval auto_log_cpu cpu_log_interval webhook_url webhook_min_level",
    "trackio.run.log": "metrics step",
    "trackio.finish": "",
}
PARAMETERS = {"run": {"name": "mine"}, "training": {"epochs": 2, "max_steps": None}}


class Calls:
    """What a tracker was asked to do, by function; `failing` functions raise."""

    def __init__(self) -> None:
        self.made: list[tuple[str, dict[str, Any]]] = []
        self.failing: set[str] = set()

    def function(self, name: str, result: Callable[[dict[str, Any]], Any] = lambda arguments: None) -> Any:
        parameters = [
            inspect.Parameter(word, inspect.Parameter.POSITIONAL_OR_KEYWORD) for word in SIGNATURES[name].split()
        ]
        signature = inspect.Signature(parameters)

        def called(*args: Any, **kwargs: Any) -> Any:
            arguments = signature.bind_partial(*args, **kwargs).arguments
            self.made.append((name, arguments))
            if name in self.failing:
                raise OSError("no\nanswer")
            return result(arguments)

        return called

    def of(self, name: str) -> list[dict[str, Any]]:
        return [arguments for called, arguments in self.made if called == name]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    calls = Calls()
    modules = {service: ModuleType(service) for service in SERVICES}
    wandb_run = SimpleNamespace(
        **{name: calls.function(f"wandb.run.{name}") for name in ("define_metric", "log", "finish")}
    )
    modules["wandb"].init = calls.function("wandb.init", lambda arguments: wandb_run)
    mlflow = modules["mlflow"]
    mlflow.start_run = calls.function(
        "mlflow.start_run",
        lambda arguments: SimpleNamespace(info=SimpleNamespace(run_id=arguments["run_id"] or "given-by-mlflow")),
    )
    for name in ("log_params", "log_metrics", "end_run"):
        setattr(mlflow, name, calls.function(f"mlflow.{name}"))
    trackio = modules["trackio"]
    trackio.init = calls.function(
        "trackio.init",
        lambda arguments: SimpleNamespace(name=arguments["name"], log=calls.function("trackio.run.log")),
    )
    trackio.finish = calls.function("trackio.finish")
    for service, module in modules.items():
        monkeypatch.setitem(sys.modules, service, module)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return calls


def build(folder: Path, *services: str) -> list[Callback]:
    return build_trackers(services, name="mine", folder=folder, parameters=PARAMETERS)


class Lines(Callback):
    """The metrics as they were handed out."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self.epochs: list[tuple[int, dict[str, float]]] = []

    def on_log(self, metrics: Any) -> None:
        self.steps.append(dict(metrics))

    def on_epoch_end(self, epoch: int, metrics: Any) -> None:
        self.epochs.append((self.trainer.state.step, dict(metrics)))


@pytest.fixture
def fit(build_model: Any, padded_batches: Any) -> Callable[..., Lines]:
    """Two epochs of six steps, a log line every four."""

    def run(callbacks: list[Callback]) -> Lines:
        lines = Lines()
        training = TrainingConfig(device="cpu", log_every_steps=4)
        trainer = Trainer(build_model(), OptimizerConfig(learning_rate=1e-2), None, training)
        trainer.fit(padded_batches, padded_batches[:1], epochs=2, callbacks=[lines, *callbacks], verbose=False)
        return lines

    return run


def written(calls: Calls, service: str) -> list[tuple[int, dict[str, float]]]:
    """The metrics that a tracker got, with their steps."""
    if service == "wandb":
        lines = [dict(call["data"]) for call in calls.of("wandb.run.log")]
        return [(int(line.pop("step")), line) for line in lines]
    name = {"mlflow": "mlflow.log_metrics", "trackio": "trackio.run.log"}[service]
    return [(call["step"], call["metrics"]) for call in calls.of(name)]


@pytest.mark.parametrize("service", SERVICES)
def test_every_log_line_and_validation_arrives_at_its_step(
    calls: Calls, fit: Callable[..., Lines], tmp_path: Path, service: str
) -> None:
    lines = fit(build(tmp_path, service))
    steps = [(int(line["step"]), {name: line[name] for name in line if name != "step"}) for line in lines.steps]
    epochs = [(step, {name: metrics[name] for name in metrics if "val_" in name}) for step, metrics in lines.epochs]
    got = written(calls, service)
    assert [line for line in got if "loss" in line[1]] == steps
    assert [line for line in got if "val_loss" in line[1]] == epochs
    assert len(got) == len(steps) + len(epochs)
    assert [step for step, _ in epochs] == [6, 12]


def test_evaluations_inside_an_epoch_arrive_too(calls: Calls, tmp_path: Path) -> None:
    for tracker in build(tmp_path, *SERVICES):
        tracker.trainer = SimpleNamespace(state=SimpleNamespace(step=7))
        tracker.on_train_begin()
        tracker.on_evaluation({"val_loss": 2.5})
    assert [written(calls, service) for service in SERVICES] == [[(7, {"val_loss": 2.5})]] * 3


def test_the_run_has_its_name_folder_and_settings(calls: Calls, fit: Callable[..., Lines], tmp_path: Path) -> None:
    fit(build(tmp_path, *SERVICES))
    flat = {"run.name": "mine", "training.epochs": 2, "training.max_steps": None}
    (wandb,), (mlflow,), (trackio,) = (calls.of(name) for name in ("wandb.init", "mlflow.start_run", "trackio.init"))
    assert wandb["name"] == mlflow["run_name"] == trackio["name"] == "mine"
    assert wandb["config"] == {**PARAMETERS, "run_folder": str(tmp_path)}
    assert calls.of("mlflow.log_params") == [{"params": flat}]
    assert mlflow["tags"] == {"run_folder": str(tmp_path)}
    assert trackio["config"] == {**flat, "run_folder": str(tmp_path)}
    assert Path(wandb["dir"]).is_dir()
    assert tmp_path in Path(wandb["dir"]).parents


def test_a_resumed_run_goes_on_under_the_same_ids(calls: Calls, fit: Callable[..., Lines], tmp_path: Path) -> None:
    fit(build(tmp_path, *SERVICES))
    fit(build(tmp_path, *SERVICES))
    first, second = calls.of("wandb.init")
    assert first["id"] == second["id"]
    assert second["resume"] == "allow"
    assert [call["run_id"] for call in calls.of("mlflow.start_run")] == [None, "given-by-mlflow"]
    assert len(calls.of("mlflow.log_params")) == 1
    assert [(call["name"], call["resume"]) for call in calls.of("trackio.init")] == [
        ("mine", "never"),
        ("mine", "allow"),
    ]


def test_another_folder_is_another_run(calls: Calls, fit: Callable[..., Lines], tmp_path: Path) -> None:
    fit(build(tmp_path / "one", *SERVICES))
    fit(build(tmp_path / "two", *SERVICES))
    first, second = calls.of("wandb.init")
    assert first["id"] != second["id"]
    assert [call["run_id"] for call in calls.of("mlflow.start_run")] == [None, None]
    assert [call["resume"] for call in calls.of("trackio.init")] == ["never", "never"]


def test_a_finished_run_and_a_failed_one_are_closed_as_what_they_are(
    calls: Calls, fit: Callable[..., Lines], tmp_path: Path
) -> None:
    class Failing(Callback):
        def on_step_end(self, step: int) -> None:
            raise KeyboardInterrupt

    fit(build(tmp_path, *SERVICES))
    with pytest.raises(KeyboardInterrupt):
        fit([*build(tmp_path, *SERVICES), Failing()])
    assert calls.of("wandb.run.finish") == [{"exit_code": 0}, {"exit_code": 1}]
    assert calls.of("mlflow.end_run") == [{"status": "FINISHED"}, {"status": "FAILED"}]
    assert len(calls.of("trackio.finish")) == 2


def test_wandb_reads_its_own_environment(
    calls: Calls, fit: Callable[..., Lines], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_PROJECT", "theirs")
    fit(build(tmp_path, "wandb"))
    (started,) = calls.of("wandb.init")
    assert not {"mode", "settings"} & set(started), "an argument would win over WANDB_MODE"
    assert started["project"] == "theirs"


@pytest.mark.parametrize(
    ("service", "command"),
    [
        ("tensorboard", "pip install 'maskwright[track]'"),
        ("wandb", "pip install wandb"),
        ("mlflow", "pip install mlflow"),
        ("trackio", "pip install trackio"),
    ],
)
def test_a_missing_package_is_one_line_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, service: str, command: str
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard" if service == "tensorboard" else service, None)
    for attempt in (lambda: check_trackers([service]), lambda: build(tmp_path, service)):
        with pytest.raises(InputError) as refusal:
            attempt()
        assert str(refusal.value) == f"training.log_to asks for {service}, which needs a package: {command}"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("service", "start"), [("wandb", "wandb.init"), ("mlflow", "mlflow.start_run"), ("trackio", "trackio.init")]
)
def test_a_tracker_that_cannot_start_ends_the_run_in_one_line(
    calls: Calls, fit: Callable[..., Lines], tmp_path: Path, service: str, start: str
) -> None:
    calls.failing = {start}
    with pytest.raises(RunError, match=f"^{service} could not start: no answer$"):
        fit(build(tmp_path, service))
    assert [name for name, _ in calls.made] == [start], "what was never open is not closed"
    assert not (tmp_path / "trackers" / "ids.json").exists()


def test_a_tracker_that_fails_later_costs_a_warning_and_not_the_run(
    calls: Calls, fit: Callable[..., Lines], tmp_path: Path
) -> None:
    calls.failing = {"mlflow.log_metrics"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(build(tmp_path, "mlflow", "trackio"))
    assert [str(warning.message) for warning in caught if "mlflow failed" in str(warning.message)] == [
        "mlflow failed, and this run goes on without it: no answer; the run folder keeps the metrics, resume or repeat"
        " the run to have them there"
    ]
    assert len(calls.of("mlflow.log_metrics")) == 1, "an answer may take minutes to fail"
    assert calls.of("mlflow.end_run") == [{"status": "FAILED"}], "it lacks metrics, but stays open for nobody"
    assert len(written(calls, "trackio")) == 6


def test_the_ids_of_all_trackers_are_kept_side_by_side(calls: Calls, fit: Callable[..., Lines], tmp_path: Path) -> None:
    fit(build(tmp_path, *SERVICES))
    ids = json.loads((tmp_path / "trackers" / "ids.json").read_text())
    assert ids == {"wandb": calls.of("wandb.init")[0]["id"], "mlflow": "given-by-mlflow", "trackio": "mine"}


def test_every_tracker_of_the_configuration_can_be_built_and_once_each(calls: Calls, tmp_path: Path) -> None:
    annotation = TrainingConfig.model_fields["log_to"].annotation
    known = get_args(get_args(annotation)[0])
    trackers = build(tmp_path, *known, *known)
    assert len({type(tracker) for tracker in trackers}) == len(trackers) == len(known) == 4
    assert isinstance(trackers[0], TensorBoard)
    assert list((tmp_path / "tensorboard").iterdir())
    for tracker in trackers:
        tracker.close()
    assert calls.made == [], "nothing starts before the run does"
