"""Runs that end in the middle: what metrics.jsonl, checkpoints and the final model say after the same command again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from maskwright.config import build_config
from maskwright.errors import InputError, RunError
from maskwright.runs.callbacks import MetricsLog, PeriodicCheckpoints, RollBack
from maskwright.runs.folder import RunFolder
from maskwright.runs.pretrain import pretrain
from maskwright.training.trainer import Trainer

_TIMED = ("tokens_per_s", "data_wait", "elapsed_s", "seconds", "first_step_s")


class KilledError(BaseException):
    """As final as a kill: no handler of ours catches it."""


@pytest.fixture
def settings(tiny_values: dict[str, Any]) -> dict[str, Any]:
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


@pytest.fixture
def unbroken(settings: dict[str, Any]) -> RunFolder:
    return run(settings, "unbroken")


def test_a_resumed_run_has_the_metrics_weights_and_figures_of_an_unbroken_one(
    settings: dict[str, Any], unbroken: RunFolder
) -> None:
    expected = read_lines(unbroken)
    assert sum("epoch_end" in line for line in expected) >= 2, "the test needs an epoch's end inside the run"
    for number, (moment, place) in enumerate(_MOMENTS.items()):
        with pytest.MonkeyPatch.context() as patch:
            if moment == "before the figures":
                patch.setattr(RunFolder, "write_final", _die)
            else:
                kill_after(patch, *place)
            with pytest.raises(KilledError):
                run(settings, f"broken{number}")
        folder = run(settings, f"broken{number}")
        assert read_lines(folder) == expected, moment
        weights = [(one.model / "model.safetensors").read_bytes() for one in (folder, unbroken)]
        assert weights[0] == weights[1], moment
        finals = [without_times(json.loads(one.final_file.read_text())) for one in (folder, unbroken)]
        assert finals[0] == finals[1], moment
        bests = [(one.checkpoints / "best.json").read_text() for one in (folder, unbroken)]
        assert bests[0] == bests[1], moment


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
