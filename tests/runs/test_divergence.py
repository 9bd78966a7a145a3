"""A loss that runs away is said while the run trains, at its end, and by the exit code; so is where to begin again."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from maskwright.config import build_config
from maskwright.errors import RunError
from maskwright.models.files.model_folder import list_checkpoints
from maskwright.runs.adapt import AdaptOptions, adapt
from maskwright.runs.callbacks import DivergenceWatch
from maskwright.runs.folder import RunFolder
from maskwright.runs.pretrain import FinishedRun, pretrain
from maskwright.training.checkpoints import is_whole
from maskwright.training.state import TrainingState
from maskwright.training.trainer import Trainer


@pytest.fixture
def values(tiny_values: dict[str, Any]) -> dict[str, Any]:
    tiny_values["training"] |= {"precision": "fp32", "max_steps": 12, "log_every_steps": 2, "checkpoint_every_steps": 4}
    tiny_values["schedule"] = {"type": "constant", "warmup_steps": 0}
    return tiny_values


def run(values: dict[str, Any], **training: Any) -> FinishedRun:
    values = values | {"training": values["training"] | training}
    return pretrain(build_config(values), console=Console(quiet=True))


def test_a_rate_that_is_far_too_high_is_said_at_once_and_at_the_end(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(Trainer, "warn", lambda self, message: warnings.append(message))
    values["optimizer"] = {"learning_rate": 100.0}
    finished = run(values)
    figures = json.loads(finished.folder.final_file.read_text())
    assert figures["loss"] > figures["unigram_loss"] + 100
    assert figures["diverged"] is True
    assert figures["trouble"] == finished.trouble
    assert f"the model is kept in {finished.folder.model}, " in figures["trouble"]
    assert "no checkpoint of this one is known to be good, with a lower optimizer.learning_rate" in figures["trouble"]
    assert len(warnings) == 1, "said once"
    assert "the training loss has diverged to " in warnings[0]
    assert int(warnings[0].removeprefix("step ").partition(":")[0]) <= 6, "with the third line at the latest"
    assert "diverged" in finished.folder.report_file.read_text()
    assert (finished.folder.model / "model.safetensors").is_file()


def test_a_short_run_that_has_not_learnt_much_yet_is_no_trouble(values: dict[str, Any]) -> None:
    finished = run(values)
    assert finished.figures["loss"] > finished.figures["unigram_loss"], "the test needs a model over the baseline"
    assert finished.figures["diverged"] is False
    assert finished.trouble is None


def test_the_command_line_says_it_and_exits_with_one(command: Any, values: dict[str, Any], tmp_path: Path) -> None:
    values["optimizer"] = {"learning_rate": 100.0}
    config = tmp_path / "high.yaml"
    config.write_text(yaml.safe_dump(values))
    result = command("train", str(config))
    assert result.code == 1
    assert "held-out loss" in result.out
    assert result.err.startswith("error: the held-out loss has diverged to ")


def test_an_adaptation_that_diverged_is_not_exported(values: dict[str, Any], tmp_path: Path) -> None:
    model, text = run(values).folder.path, values["data"]["train"]
    settings = ["optimizer.learning_rate=100", "training.max_steps=6", "training.precision=fp32", "training.device=cpu"]
    settings += ["schedule.warmup_steps=0", "schedule.type=constant", "training.log_every_steps=1"]
    options = AdaptOptions([text], tmp_path / "adapted", general=[text], max_forgetting=1e9, settings=settings)
    for _ in range(2):  # the second time the run is finished
        with pytest.raises(RunError, match=r"the held-out loss has diverged to .* is kept in .*adapted/model"):
            adapt(str(model), options, Console(quiet=True), lambda text: None)
    assert not (tmp_path / "adapted" / "export").exists()
    assert (tmp_path / "adapted" / "model").is_dir()


def break_from_step(monkeypatch: pytest.MonkeyPatch, step: int, factor: float) -> None:
    """From that step on a loss of training is so many times too large."""
    build = Trainer._train_epoch

    def spoiled(self: Trainer, *arguments: Any) -> None:
        loss_sums, state = self.model.loss_sums, self.state

        def wrong(corrupted: Any) -> Any:
            sums = loss_sums(corrupted)
            if state.step < step or not self.model.training:
                return sums
            return type(sums)(sums.losses * factor, sums.counts, sums.figures)

        monkeypatch.setattr(self.model, "loss_sums", wrong)
        build(self, *arguments)

    monkeypatch.setattr(Trainer, "_train_epoch", spoiled)


def test_the_advice_after_bad_steps_names_the_last_good_checkpoint(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_from_step(monkeypatch, 8, math.nan)
    folder = Path(values["run"]["out"]) / "tiny" / "checkpoints"
    with pytest.raises(RunError) as ending:
        run(values, max_bad_steps=3, max_steps=20, checkpoint_every_steps=2, keep_checkpoints=9)
    # The weights of step 8 gave the next step a loss that was not finite.
    assert is_whole(folder / "step-8")
    assert f"model.from={folder / 'step-6'}, with a lower optimizer.learning_rate" in str(ending.value)


def test_the_advice_after_bad_steps_names_no_checkpoint_where_none_is_good(
    values: dict[str, Any],
) -> None:
    values["optimizer"] = {"learning_rate": 1e30}
    with pytest.raises(RunError, match=r"not finite in .*no checkpoint of this one is known to be good") as ending:
        run(values, max_bad_steps=6, checkpoint_every_steps=1)
    assert "model.from" not in str(ending.value)
    assert any(map(is_whole, list_checkpoints(Path(values["run"]["out"]) / "tiny" / "checkpoints")))


class Watched:
    """A watch that is told losses, on the main process of a run that began at a loss."""

    def __init__(self, run: Any, unigram_loss: float | None, first: float) -> None:
        self.warnings: list[str] = []
        self.state, self.warn = TrainingState(first_loss=first), self.warnings.append
        self.watch = DivergenceWatch(run, unigram_loss)
        self.watch.trainer = self  # type: ignore[assignment]

    def tell(self, *losses: float) -> Watched:
        for loss in losses:
            self.state.step += 1
            self.watch.on_log({"step": self.state.step, "loss": loss, "skipped_steps": 0})
        return self


@pytest.fixture
def build_watch(tmp_path: Path) -> Callable[..., Watched]:
    return lambda unigram_loss=7.0, first=10.0: Watched(RunFolder(tmp_path), unigram_loss, first)


@pytest.mark.parametrize(
    ("losses", "held_out", "is_diverged"),
    [
        ((10.0, 9.0, 8.0), 8.0, False),  # over the baseline, as every run at first
        ((10.2, 10.4, 10.9), 10.9, False),  # within what losses vary
        ((9.0, 3.0, 7.3, 7.3), 7.3, True),  # back to token frequencies
        ((9.0, 3.0, 6.0, 6.0), 6.0, False),  # a harder phase, but better than the baseline
        ((9.0, 2.0, 0.1), 12.0, False),  # overfitting: what was trained on is known
        ((50.0, 40.0, 30.0), 30.0, True),  # the first line has diverged already
        ((9.0, 3.0, 9.0), 2.9, False),  # the best weights were restored
        ((9.0, 3.0, 9.0), None, True),
    ],
)
def test_the_verdict(
    build_watch: Callable[..., Watched], losses: tuple[float, ...], held_out: float | None, is_diverged: bool
) -> None:
    assert build_watch().tell(*losses).watch.judge(held_out)["diverged"] is is_diverged


def test_a_spike_that_passes_is_not_said_and_each_divergence_once(build_watch: Callable[..., Watched]) -> None:
    watched = build_watch().tell(5.0, 9.0, 9.0, 5.0)
    assert watched.warnings == []
    assert len(watched.tell(9.0, 9.0, 9.0, 9.0, 9.0).warnings) == 1
    assert len(watched.tell(5.0, 9.0, 9.0, 9.0).warnings) == 2


def test_the_best_that_is_named_may_be_the_loss_of_the_first_step(build_watch: Callable[..., Watched]) -> None:
    trouble = build_watch(unigram_loss=None, first=0.7).tell(99.0, 45.0).watch.judge(24.0)["trouble"]
    assert "diverged to 24.000 (its best was 0.700, it began at 0.700)" in trouble


def test_other_tasks_go_by_the_loss_they_began_with(build_watch: Callable[..., Watched]) -> None:
    watched = build_watch(unigram_loss=None, first=0.7)
    assert not watched.tell(0.1, 0.001, 0.9, 2.0).watch.judge(2.0)["diverged"]
    assert (
        watched.tell(2.5).watch.judge(2.5)["trouble"].endswith("start a new run, with a lower optimizer.learning_rate")
    )
