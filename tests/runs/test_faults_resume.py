"""Runs that end in the middle: what metrics.jsonl, checkpoints and the final model say after the same command again."""

from __future__ import annotations

import importlib
import json
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from maskwright.config import build_config
from maskwright.errors import InputError, RunError, RunInterruptedError
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.runs import callbacks as callbacks_module
from maskwright.runs import interruption, texts
from maskwright.runs import pretrain as pretrain_module
from maskwright.runs.callbacks import MetricsLog, PeriodicCheckpoints, RollBack
from maskwright.runs.folder import RunFolder
from maskwright.runs.interruption import GracefulStop
from maskwright.runs.pretrain import pretrain
from maskwright.training.checkpoints import find_resumable
from maskwright.training.engine import Engine
from maskwright.training.loop import TrainingLoop
from maskwright.training.trainer import Trainer

_TIMED = ("tokens_per_s", "data_wait", "elapsed_s", "seconds", "first_step_s")


class KilledError(BaseException):
    """As final as a kill: no handler of ours catches it."""


def build_settings(tiny_values: dict[str, Any]) -> dict[str, Any]:
    """Two epochs and a half, with an evaluation every three steps and a checkpoint every two."""
    tiny_values["training"] |= {
        "precision": "fp32",
        "batch_tokens": 96,
        "max_steps": 16,
        "checkpoint_every_steps": 2,
        "evaluate_every_steps": 3,
        "evaluate_max_batches": 1,
        "log_every_steps": 4,
        "keep_best": True,
    }
    return tiny_values


@pytest.fixture
def settings(tiny_values: dict[str, Any]) -> dict[str, Any]:
    return build_settings(tiny_values)


def run(values: dict[str, Any], name: str = "tiny", **training: Any) -> RunFolder:
    values = values | {"run": values["run"] | {"name": name}, "training": values["training"] | training}
    return pretrain(build_config(values), console=Console(quiet=True)).folder


def read_lines(folder: RunFolder) -> list[dict[str, Any]]:
    return [without_times(line) for line in folder.read_metrics()]


def without_times(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in _TIMED}


def kill_after(monkeypatch: pytest.MonkeyPatch, owner: type, method: str, is_time: Callable[[Any], bool]) -> None:
    """End the process, as it were, right after a call."""
    original = getattr(owner, method)

    def dying(self: Any, *arguments: Any) -> Any:
        result = original(self, *arguments)
        if is_time(self):
            raise KilledError
        return result

    monkeypatch.setattr(owner, method, dying)


_MOMENTS: dict[str, tuple[type, str, Callable[[Any], bool]]] = {
    "after an evaluation": (MetricsLog, "on_evaluation", lambda callback: callback.trainer.state.step == 9),
    "after an evaluation's checkpoint": (
        PeriodicCheckpoints,
        "on_step_end",
        lambda callback: callback.trainer.state.step == 6,
    ),
    "after an epoch's line": (MetricsLog, "on_epoch_end", lambda callback: callback.trainer.state.epoch == 1),
    "after an epoch": (PeriodicCheckpoints, "on_epoch_end", lambda callback: callback.trainer.state.epoch == 1),
    "after the last line": (MetricsLog, "on_epoch_end", lambda callback: callback.trainer.state.step == 16),
    "after the last checkpoint": (
        PeriodicCheckpoints,
        "on_epoch_end",
        lambda callback: callback.trainer.state.step == 16,
    ),
    "before the figures": (RunFolder, "write_final", lambda folder: False),
}


_NEAR_ANOTHER = {
    "after an evaluation",
    "after an evaluation's checkpoint",
    "after an epoch",
    "after the last line",
    "in the last epoch's evaluation",
    "at the last epoch's end",
    "after training",
    "as signals are handed back",
    "in the final evaluation",
    "in the report",
    ".report.html.tmp",
    "in the model's saving",
    "curves.png",
    ".final.json.tmp",
}
"""In the order of a run: the moment, or file, before or after it stays in the default tests."""


def mark_slow(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.slow) if name in _NEAR_ANOTHER else name for name in names]


@pytest.fixture(scope="module")
def unbroken(
    build_tiny_values: Callable[[Path], dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> RunFolder:
    return run(build_settings(build_tiny_values(tmp_path_factory.mktemp("runs"))), "unbroken")


@pytest.mark.parametrize("moment", mark_slow(_MOMENTS))
def test_a_resumed_run_has_the_metrics_weights_and_figures_of_an_unbroken_one(
    settings: dict[str, Any], unbroken: RunFolder, moment: str
) -> None:
    expected = read_lines(unbroken)
    assert sum("epoch_end" in line for line in expected) >= 2, "the test needs an epoch's end inside the run"
    with pytest.MonkeyPatch.context() as patch:
        if moment == "before the figures":
            patch.setattr(RunFolder, "write_final", _die)
        else:
            kill_after(patch, *_MOMENTS[moment])
        with pytest.raises(KilledError):
            run(settings, "broken")
    folder = run(settings, "broken")
    assert read_lines(folder) == expected
    weights = [(one.model / "model.safetensors").read_bytes() for one in (folder, unbroken)]
    assert weights[0] == weights[1]
    finals = [without_times(json.loads(one.final_file.read_text())) for one in (folder, unbroken)]
    assert finals[0] == finals[1]
    bests = [(one.checkpoints / "best.json").read_text() for one in (folder, unbroken)]
    assert bests[0] == bests[1]


def test_a_run_that_goes_on_with_its_texts_in_files_equals_an_unbroken_one_in_memory(
    settings: dict[str, Any], unbroken: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "SPILL_CHARS", 100)
    with pytest.MonkeyPatch.context() as patch:
        kill_after(patch, *_MOMENTS["after an evaluation"])
        with pytest.raises(KilledError):
            run(settings, "broken")
    folder = run(settings, "broken")
    assert read_lines(folder) == read_lines(unbroken)
    assert (folder.model / "model.safetensors").read_bytes() == (unbroken.model / "model.safetensors").read_bytes()


def signal_in(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, number: int, is_time: Any = None) -> None:
    """The signal comes when a call begins."""
    original = getattr(owner, name)

    def interrupted(*arguments: Any, **named: Any) -> Any:
        if is_time is None or is_time(*arguments):
            os.kill(os.getpid(), number)
        return original(*arguments, **named)

    monkeypatch.setattr(owner, name, interrupted)


def _is_last(callback: Any, *_: Any) -> bool:
    return bool(callback.trainer.state.step == 16)


_INTERRUPTIONS: dict[str, tuple[Any, str, Any]] = {
    "while texts are read": (pretrain_module, "load_data", None),
    "in the last step": (MetricsLog, "on_log", _is_last),
    "in the last epoch's evaluation": (Trainer, "_end_epoch", lambda trainer, *_: trainer.state.step == 16),
    "at the last epoch's end": (MetricsLog, "on_epoch_end", _is_last),
    "after the last checkpoint": (GracefulStop, "on_epoch_end", _is_last),
    "after training": (Engine, "finish", None),
    "as signals are handed back": (GracefulStop, "close", None),
    "in the model's saving": (MaskedLanguageModel, "save_pretrained", None),
    "in the final evaluation": (TrainingLoop, "measure", None),
    "in the report": (pretrain_module, "write_report", None),
    "before the figures": (RunFolder, "write_final", None),
}


@pytest.mark.parametrize("moment", mark_slow(_INTERRUPTIONS))
def test_a_signal_at_any_moment_ends_the_run_and_the_same_command_finishes_it(
    settings: dict[str, Any], unbroken: RunFolder, moment: str
) -> None:
    numbers = (signal.SIGTERM, signal.SIGINT)
    handlers = [signal.getsignal(number) for number in numbers]
    owner, method, is_time = _INTERRUPTIONS[moment]
    number = numbers[list(_INTERRUPTIONS).index(moment) % 2]
    with pytest.MonkeyPatch.context() as patch:
        signal_in(patch, owner, method, number, is_time)
        with pytest.raises(RunInterruptedError, match=r"^interrupted.*the same command") as ending:
            run(settings)
    assert ending.value.exit_code == 128 + number
    if moment != "while texts are read":
        assert str(Path("tiny") / "checkpoints" / "step-16") in str(ending.value)
    assert [signal.getsignal(one) for one in numbers] == handlers
    folder = run(settings)
    assert read_lines(folder) == read_lines(unbroken)
    weights = [(one.model / "model.safetensors").read_bytes() for one in (folder, unbroken)]
    assert weights[0] == weights[1]


def test_a_signal_as_a_run_ends_is_not_swallowed(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    signal_in(monkeypatch, interruption._Signals, "close", signal.SIGTERM)
    with pytest.raises(RunInterruptedError, match=r"tiny \(finished\) is kept") as ending:
        run(settings)
    assert ending.value.exit_code == 143


def test_a_signal_on_a_full_disk_ends_the_run_as_any_other(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    signal_in(monkeypatch, MetricsLog, "on_log", signal.SIGTERM, lambda callback, *_: callback.trainer.state.step == 7)

    def fail(path: Path, *_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device", str(path))

    def fill_disk(self: RollBack, step: int) -> None:
        if step == 7:
            self.trainer.finish_writing()
            monkeypatch.setattr("maskwright.training.checkpoints.write_safetensors", fail)

    monkeypatch.setattr(RollBack, "on_step_end", fill_disk)
    with pytest.raises(RunInterruptedError, match=r"at step 7; .*step-6 is kept, and the same command") as ending:
        run(settings, log_every_steps=1, rollback_deviations=1e9, evaluate_every_steps=None)
    assert ending.value.exit_code == 143


def damage_all(folder: RunFolder) -> None:
    for checkpoint in folder.checkpoints.glob("step-*"):
        (checkpoint / "checksums.json").write_text("{}")


def break_at_step(settings: dict[str, Any], step: int, **training: Any) -> RunFolder:
    with pytest.MonkeyPatch.context() as patch:
        kill_after(patch, PeriodicCheckpoints, "on_step_end", lambda callback: callback.trainer.state.step == step)
        with pytest.raises(KilledError):
            run(settings, **training)
    return RunFolder(Path(settings["run"]["out"]) / "tiny")


def test_a_run_whose_checkpoints_are_all_damaged_stops_and_says_so(settings: dict[str, Any]) -> None:
    folder = break_at_step(settings, 8)
    damage_all(folder)
    metrics = folder.metrics_file.read_bytes()
    with pytest.raises(InputError, match=r"no whole checkpoint.*step-8.*step-6.*--overwrite .*to begin anew"):
        run(settings)
    assert folder.metrics_file.read_bytes() == metrics


@pytest.mark.parametrize("content", [None, pytest.param(b"{}\n" * 3, marks=pytest.mark.slow)])
def test_lost_metrics_are_said_and_the_run_goes_on(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    folder = break_at_step(settings, 8)
    folder.metrics_file.unlink() if content is None else folder.metrics_file.write_bytes(content)
    warnings: list[str] = []
    monkeypatch.setattr(Trainer, "warn", lambda self, message: warnings.append(message))
    steps = [line["step"] for line in run(settings, rollback_deviations=None).read_metrics()]
    assert steps[0] > 8
    assert steps[-1] == 16
    assert "metrics.jsonl" in warnings[0]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize(
    "name",
    mark_slow(["metrics.jsonl", "model/.model.safetensors.tmp", "curves.png", ".report.html.tmp", ".final.json.tmp"]),
)
def test_a_full_disk_is_said_with_the_file_what_is_kept_and_how_to_go_on(settings: dict[str, Any], name: str) -> None:
    folder = break_at_step(settings, 8)
    file = folder.path / name

    def fill(*_: Any) -> bool:
        file.parent.mkdir(exist_ok=True)
        file.unlink(missing_ok=True)
        file.symlink_to("/dev/full")
        return False

    with pytest.MonkeyPatch.context() as patch:
        kill_after(patch, PeriodicCheckpoints, "on_train_begin", fill)
        said = name.removeprefix("model/").removeprefix(".").removesuffix(".tmp")
        with pytest.raises(
            RunError, match=rf"No space left on device: .*{said}.*step-\d+ is kept, and the same command"
        ):
            run(settings)
    file.unlink(missing_ok=True)
    assert json.loads(run(settings).final_file.read_text())["steps"] == 16


def stop_on_full_disk(settings: dict[str, Any], needed: int | None = None) -> tuple[str, list[str]]:
    """What is said by a run that SIGTERM ends at step 7, since step 5 without room for metrics.jsonl.

    There is room again when no more than `needed` checkpoints are left.
    """
    warnings: list[str] = []
    folder = RunFolder(Path(settings["run"]["out"]) / "tiny")
    with pytest.MonkeyPatch.context() as patch:
        append = callbacks_module.append_text

        def refuse(path: Path, text: str) -> None:
            saved = [path.name for path in folder.checkpoints.glob("step-*")]
            is_full = needed is None or len(saved) > needed or "step-7" not in saved
            fail_on_full_disk(path) if '"step": 5' in text and is_full else append(path, text)

        patch.setattr(callbacks_module, "append_text", refuse)
        patch.setattr(Trainer, "warn", lambda self, message: warnings.append(message))
        signal_in(patch, MetricsLog, "on_log", signal.SIGTERM, lambda callback, *_: callback.trainer.state.step == 7)
        with pytest.raises(RunInterruptedError) as ending:
            run(settings, log_every_steps=1, keep_best=False, keep_checkpoints=3)
    return str(ending.value), warnings


def test_old_checkpoints_give_way_to_the_metrics_of_a_run_that_is_stopped(settings: dict[str, Any]) -> None:
    said, warnings = stop_on_full_disk(settings, needed=1)
    folder = RunFolder(Path(settings["run"]["out"]) / "tiny")
    assert "could not be completed" not in said
    assert any(f"{folder.checkpoints / 'step-4'} is removed to make room" in text for text in warnings)
    assert sorted({line["step"] for line in folder.read_metrics()}) == [1, 2, 3, 4, 5, 6, 7]


def test_a_run_that_is_stopped_on_a_full_disk_says_what_is_incomplete(settings: dict[str, Any]) -> None:
    said, _ = stop_on_full_disk(settings)
    folder = RunFolder(Path(settings["run"]["out"]) / "tiny")
    assert said.endswith(f"; {folder.metrics_file} could not be completed: No space left on device")
    assert json.loads(run(settings, log_every_steps=1, keep_best=False).final_file.read_text())["steps"] == 16


def fail_on_full_disk(path: Path, *_: Any, **__: Any) -> None:
    raise OSError(28, "No space left on device", str(path))


def fill_disk_between(monkeypatch: pytest.MonkeyPatch, first: int, last: int) -> list[str]:
    """While the run is at these steps nothing can be written; what it warns of."""
    warnings: list[str] = []
    begin, save = MetricsLog.on_train_begin, PeriodicCheckpoints._save
    monkeypatch.setattr(Trainer, "warn", lambda self, message: warnings.append(message))

    def saving_before_the_next_step(self: PeriodicCheckpoints) -> None:
        save(self)
        self.trainer.finish_writing()

    def watching(self: MetricsLog) -> None:
        begin(self)
        for place in ("training.checkpoints.write_safetensors", "models.files.model_folder.write_safetensors"):
            refuse(f"maskwright.{place}", self.trainer)
        refuse("maskwright.runs.callbacks.append_text", self.trainer)

    def refuse(name: str, trainer: Trainer) -> None:
        module, _, function = name.rpartition(".")
        original = getattr(importlib.import_module(module), function)

        def write(path: Path, *arguments: Any, **named: Any) -> None:
            fail_on_full_disk(path) if first <= trainer.state.step <= last else original(path, *arguments, **named)

        monkeypatch.setattr(name, write)

    monkeypatch.setattr(MetricsLog, "on_train_begin", watching)
    monkeypatch.setattr(PeriodicCheckpoints, "_save", saving_before_the_next_step)
    return warnings


def test_a_disk_that_is_full_for_a_while_costs_no_step_and_no_line(
    settings: dict[str, Any], unbroken: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings = fill_disk_between(monkeypatch, 4, 11)
    folder = run(settings, log_every_steps=4)
    assert read_lines(folder) == read_lines(unbroken)
    assert (folder.model / "model.safetensors").read_bytes() == (unbroken.model / "model.safetensors").read_bytes()
    about_metrics = [text for text in warnings if "metrics.jsonl" in text]
    assert len(about_metrics) == 1, "one warning for as long as it lasts"
    assert "No space left on device; it needs " in about_metrics[0]
    assert " are free on its disk; " in about_metrics[0]
    assert any("step-4: [Errno 28] No space left on device" in text for text in warnings)


def test_a_run_that_cannot_save_its_end_says_what_is_kept_and_what_is_lost(
    settings: dict[str, Any], unbroken: RunFolder
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        fill_disk_between(patch, 7, 1_000)
        with pytest.raises(RunError) as ending:
            run(settings)
    folder = RunFolder(Path(settings["run"]["out"]) / "tiny")
    text = str(ending.value)
    assert f"cannot write {folder.checkpoints / 'step-16'}: [Errno 28] No space left on device" in text
    assert " bytes, " in text
    assert f"steps 7 to 16 are lost; {folder.checkpoints / 'step-6'} is kept, and the same command goes on" in text
    assert read_lines(run(settings)) == read_lines(unbroken)


def test_a_run_at_its_end_waits_for_room(
    settings: dict[str, Any], unbroken: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    with pytest.MonkeyPatch.context() as patch:
        fill_disk_between(patch, 7, 16)

        def make_room(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 3:
                patch.undo()

        monkeypatch.setattr(interruption, "_WAIT_FOR_ROOM_S", 1e9)
        monkeypatch.setattr(interruption.time, "sleep", make_room)
        folder = run(settings)
    assert len(waits) == 3
    assert read_lines(folder) == read_lines(unbroken)
    assert (folder.checkpoints / "step-16").is_dir()
    assert json.loads(folder.final_file.read_text())["steps"] == 16


def test_the_model_is_saved_where_the_last_checkpoint_does_not_fit(
    settings: dict[str, Any], unbroken: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = pretrain_module.Trainer.retry_checkpoint

    def refuse(self: Trainer) -> None:
        monkeypatch.setattr("maskwright.training.checkpoints.write_safetensors", fail_on_full_disk)
        write(self)

    def save_one(self: PeriodicCheckpoints, step: int) -> None:
        if step == 14:
            self._save()
            self.trainer.finish_writing()  # before the disk is full

    monkeypatch.setattr(PeriodicCheckpoints, "on_step_end", save_one)
    monkeypatch.setattr(PeriodicCheckpoints, "on_epoch_end", _save_in_vain)
    monkeypatch.setattr(Trainer, "retry_checkpoint", refuse)
    folder = run(settings, keep_best=False)
    assert (folder.model / "model.safetensors").read_bytes() == (unbroken.model / "model.safetensors").read_bytes()
    assert folder.is_finished
    assert [path.name for path in folder.checkpoints.glob("step-*")] == ["step-14"]


def _save_in_vain(self: PeriodicCheckpoints, epoch: int, metrics: Any) -> None:
    if self.trainer.stop_training:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("maskwright.training.checkpoints.write_safetensors", fail_on_full_disk)
            self._save()
            self.trainer.finish_writing()


def test_lines_that_were_undone_before_they_were_written_are_not_written(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, jumped = RollBack.on_log, []

    def jumping(self: RollBack, metrics: Any) -> None:
        is_time = metrics["step"] == 13 and not jumped
        jumped.extend([13] * is_time)
        log(self, {**metrics, "loss": metrics["loss"] + 50.0} if is_time else metrics)

    monkeypatch.setattr(RollBack, "on_log", jumping)
    fill_disk_between(monkeypatch, 11, 13)
    options = {"rollback_deviations": 6.0, "log_every_steps": 1, "checkpoint_every_steps": 5, "keep_best": False}
    lines = run(settings, **options).read_metrics()
    assert jumped == [13]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 17))


@pytest.mark.parametrize("every", [pytest.param(None, marks=pytest.mark.slow), 3])
def test_a_checkpoint_is_whole_before_the_first_evaluation_and_the_run_goes_on_from_it(
    settings: dict[str, Any], every: int | None
) -> None:
    options = {"checkpoint_every_steps": 1_000, "evaluate_every_steps": every, "max_steps": 7}
    expected = run(settings, "whole", **options)
    found: list[Path | None] = []

    def look(trainer: Trainer, *_: Any) -> bool:
        found.append(find_resumable(Path(settings["run"]["out"]) / "tiny" / "checkpoints")[0])
        return True

    with pytest.MonkeyPatch.context() as patch:
        kill_after(patch, Trainer, "_evaluate", look)
        with pytest.raises(KilledError):
            run(settings, **options)
    assert [path and path.name for path in found] == ["step-2" if every else "step-7"]
    folder = run(settings, **options)
    assert read_lines(folder) == read_lines(expected)
    assert (folder.model / "model.safetensors").read_bytes() == (expected.model / "model.safetensors").read_bytes()


def test_the_last_checkpoint_is_whole_before_the_final_evaluation(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[Path | None, list[str]]] = []
    measure = TrainingLoop.measure

    def look(*arguments: Any, **named: Any) -> Any:
        found.append(find_resumable(Path(settings["run"]["out"]) / "tiny" / "checkpoints"))
        return measure(*arguments, **named)

    monkeypatch.setattr(TrainingLoop, "measure", look)
    folder = run(settings)
    assert found == [(folder.checkpoints / "step-16", [])]


def test_a_system_that_starts_no_thread_is_said_with_what_is_kept(settings: dict[str, Any]) -> None:
    break_at_step(settings, 8)

    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("maskwright.training.checkpoint_writer.ThreadPoolExecutor.submit", refuse)
        with pytest.raises(RunError, match=r"no more threads .*ulimit -u.*step-8 is kept, and the same command"):
            run(settings)


def _die(self: RunFolder, figures: dict[str, Any]) -> None:
    raise KilledError


def test_evaluations_have_lines_between_the_ends_of_epochs(unbroken: RunFolder) -> None:
    lines = [line for line in unbroken.read_metrics() if "val_loss" in line]
    inside = [line["step"] for line in lines if "epoch_end" not in line]
    ends = [line["step"] for line in lines if "epoch_end" in line]
    assert ends[-1] == 16
    assert inside == [step for step in range(3, 17, 3) if step not in ends]
    assert all(
        set(line) == {"step", "epoch", "tokens", "val_loss", "val_mlm_accuracy"}
        for line in lines
        if line["step"] in inside
    )
    tokens = [line["tokens"] for line in unbroken.read_metrics()]
    assert tokens == sorted(tokens)


def test_the_best_checkpoint_and_milestones_stay(settings: dict[str, Any]) -> None:
    folder = run(settings, keep_checkpoints=1, keep_every_steps=8, evaluate_max_batches=None)
    losses = {line["step"]: line["val_loss"] for line in folder.read_metrics() if "val_loss" in line}
    best = min(losses, key=lambda step: losses[step])
    assert json.loads((folder.checkpoints / "best.json").read_text()) == {"step": best, "value": losses[best]}
    kept = sorted(int(path.name.removeprefix("step-")) for path in folder.checkpoints.glob("step-*"))
    assert kept == sorted({8, 16, best})


def test_a_run_goes_on_from_a_model_with_a_new_schedule(settings: dict[str, Any], unbroken: RunFolder) -> None:
    settings["model"] = {"from": str(unbroken.path)}
    settings["optimizer"] = {"learning_rate": 1e-3}
    settings["schedule"] = {"type": "constant", "warmup_steps": 0}
    settings["tokenizer"] = {}
    first_losses, rates = {}, set()
    for name, extra in (("fresh", {}), ("kept", {"keep_optimizer": True})):
        folder = run(settings, name, initial_epoch=5, epochs=7, max_steps=4, log_every_steps=1, **extra)
        lines = [line for line in folder.read_metrics() if "lr" in line]
        assert [line["step"] for line in lines] == [1, 2, 3, 4]
        assert {line["epoch"] for line in lines} == {5}
        first_losses[name] = lines[0]["loss"]
        rates |= {line["lr"] for line in lines}
        first_losses[f"{name} third"] = lines[2]["loss"]
    assert rates == {1e-3}
    assert first_losses["fresh"] == first_losses["kept"], "the same weights"
    assert first_losses["fresh third"] != first_losses["kept third"], "other optimizer state"
    started = next(line["loss"] for line in unbroken.read_metrics() if "loss" in line)
    assert first_losses["fresh"] < started - 0.1


def test_keeping_the_optimizer_needs_a_checkpoint(settings: dict[str, Any], unbroken: RunFolder) -> None:
    settings["model"], settings["tokenizer"] = {"from": str(unbroken.model)}, {}
    with pytest.raises(InputError, match=r"training\.keep_optimizer needs model\.from to be a run or a checkpoint"):
        run(settings, "kept", keep_optimizer=True)


def test_a_jump_of_the_loss_goes_back_to_the_checkpoint_and_past_the_batches(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []
    warnings: list[str] = []
    log, end = RollBack.on_log, PeriodicCheckpoints.on_step_end
    jumped: list[int] = []

    def jumping(self: RollBack, metrics: Any) -> None:
        is_time = metrics["step"] == 13 and not jumped
        if is_time:
            jumped.append(13)
        log(self, {**metrics, "loss": metrics["loss"] + 50.0} if is_time else metrics)

    def noting(self: PeriodicCheckpoints, step: int) -> None:
        seen.append((step, self.trainer.state.num_batches))
        end(self, step)

    monkeypatch.setattr(RollBack, "on_log", jumping)
    monkeypatch.setattr(PeriodicCheckpoints, "on_step_end", noting)
    monkeypatch.setattr(Trainer, "warn", lambda self, message: warnings.append(message))
    settings["training"]["evaluate_every_steps"] = 5
    folder = run(settings, rollback_deviations=6.0, log_every_steps=1, checkpoint_every_steps=5, keep_best=False)
    assert [step for step, _ in seen] == [*range(1, 13), 10, *range(11, 17)]
    assert [batches for _, batches in seen] == list(range(1, 20)), "no batch is seen twice"
    assert len(warnings) == 1
    assert "going back to step-10, past the batches since" in warnings[0]
    assert json.loads(folder.final_file.read_text())["steps"] == 16
    lines = folder.read_metrics()
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 17)), "what was undone is not there"
    inside = [line["step"] for line in lines if "loss" not in line and "epoch_end" not in line]
    assert inside == [5, 10, 15]
    assert [line["step"] for line in lines] == sorted(line["step"] for line in lines)


def test_what_kills_inside_saves_left_does_not_pile_up(settings: dict[str, Any]) -> None:
    settings["training"]["keep_best"] = False
    with pytest.MonkeyPatch.context() as patch:
        kill_after(patch, PeriodicCheckpoints, "on_step_end", lambda callback: callback.trainer.state.step == 8)
        with pytest.raises(KilledError):
            run(settings)
    checkpoints = RunFolder(Path(settings["run"]["out"]) / "tiny").checkpoints
    (checkpoints / ".step-7.tmp").mkdir()
    (checkpoints / "step-8").rename(checkpoints / ".step-8.old")
    (checkpoints / "step-6").rename(checkpoints / ".step-6.old")
    folder = run(settings)
    assert not list(folder.checkpoints.glob(".*"))
    assert sorted(path.name for path in folder.checkpoints.glob("step-*")) == ["step-14", "step-16"]


def test_a_kill_before_the_best_is_named_does_not_lose_it(settings: dict[str, Any], unbroken: RunFolder) -> None:
    expected = json.loads((unbroken.checkpoints / "best.json").read_text())
    with pytest.MonkeyPatch.context() as patch:
        kill_after(patch, PeriodicCheckpoints, "on_step_end", lambda callback: callback.trainer.state.step == 10)
        with pytest.raises(KilledError):
            run(settings)
    best_file = RunFolder(Path(settings["run"]["out"]) / "tiny").checkpoints / "best.json"
    best_file.unlink()
    with pytest.MonkeyPatch.context() as patch:
        kill_after(patch, PeriodicCheckpoints, "on_train_begin", lambda callback: True)
        with pytest.raises(KilledError):
            run(settings)
    assert json.loads(best_file.read_text())["step"] == 9, "named again from what the checkpoint knows"
    assert json.loads((run(settings).checkpoints / "best.json").read_text()) == expected


def test_a_loss_that_jumps_again_and_again_ends_the_run(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = RollBack.on_log

    def jumping(self: RollBack, metrics: Any) -> None:
        log(self, {**metrics, "loss": metrics["loss"] + 50.0} if metrics["step"] > 12 else metrics)

    monkeypatch.setattr(RollBack, "on_log", jumping)
    with pytest.raises(RunError, match=r"after 3 returns to step-10.* a lower optimizer\.learning_rate"):
        run(settings, rollback_deviations=6.0, log_every_steps=1, checkpoint_every_steps=5, keep_best=False)
