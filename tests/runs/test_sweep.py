"""Sweeps: what is tried, who goes on, and that pauses and interruptions change nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

import maskwright as mw
from maskwright.errors import BadStepsError, InputError, RunError, RunInterruptedError
from maskwright.runs.sweep import sweep as sweep_module
from maskwright.runs.sweep.halving import count_whole_runs, keep_best, plan_rounds
from maskwright.runs.sweep.space import Choices, Range, choose_settings, split_settings

RATES = "optimizer.learning_rate=1e-4,3e-3,1e-2"
QUIET = Console(quiet=True)
BUDGET = {"max_steps": 6, "epochs": 50}


def run(values: dict[str, Any], out: Path, *settings: str, **options: Any) -> mw.Sweep:
    return mw.sweep(values, list(settings) or [RATES], out=out, console=QUIET, **options)


@pytest.fixture
def values(tiny_values: dict[str, Any]) -> dict[str, Any]:
    tiny_values["training"] |= BUDGET
    return tiny_values


def test_settings_are_told_apart_by_their_values() -> None:
    words, space = split_settings(
        [
            "data.max_length=32",
            "training.log_to=[a, b]",
            "masking.ratio=0.15, 0.3",
            "optimizer.learning_rate=1e-4..1e-2",
        ]
    )
    assert words == ["data.max_length=32", "training.log_to=[a, b]"]
    assert space == {
        "masking.ratio": Choices(("0.15", "0.3")),
        "optimizer.learning_rate": Range(1e-4, 1e-2, is_whole=False),
    }
    _, given = split_settings({"masking": {"ratio": 0.2}, "model.num_hidden_layers": [1, 2], "run.seed": "0..5"})
    assert given == {"model.num_hidden_layers": Choices(("1", "2")), "run.seed": Range(0, 5, is_whole=True)}


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("masking.ratio=0.3", "nothing to sweep"),
        ("masking.ratio=0.3,", "an empty value or one twice"),
        ("masking.ratio=0.3,0.3", "an empty value or one twice"),
        ("optimizer.learning_rate=1e-2..1e-4", "does not rise"),
        ("optimizer.learning_rate=1.2.3..4", "no range of numbers"),
        ("tokenizer.vocab_size=100,200", "losses of different tokenizers do not compare"),
        ("data.train=a.txt,b.txt", "different held-out texts"),
        ("run.name=a,b", "a folder of its own"),
    ],
)
def test_what_cannot_be_swept_is_refused(word: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        split_settings([word])


@pytest.mark.parametrize(
    ("num_trials", "keep_one_of", "expected"),
    [
        (27, 3, [(1 / 9, 27), (1 / 3, 9), (1.0, 3)]),
        (3, 3, [(1 / 3, 3), (1.0, 1)]),
        (5, 2, [(1 / 4, 5), (1 / 2, 3), (1.0, 2)]),
        (2, 3, [(1.0, 2)]),
        (9, 1, [(1.0, 9)]),
    ],
)
def test_rounds_train_fewer_trials_for_longer(
    num_trials: int, keep_one_of: int, expected: list[tuple[float, int]]
) -> None:
    rounds = plan_rounds(num_trials, keep_one_of)
    assert [one.num_trials for one in rounds] == [count for _, count in expected]
    assert [one.share for one in rounds] == pytest.approx([share for share, _ in expected])


def test_the_cost_counts_what_is_trained_anew() -> None:
    assert count_whole_runs(plan_rounds(27, 3)) == pytest.approx(27 / 9 + 9 * (1 / 3 - 1 / 9) + 3 * (1 - 1 / 3))


def test_failed_trials_do_not_go_on() -> None:
    assert keep_best({0: 3.0, 1: None, 2: 1.0, 3: 2.0}, 2) == [2, 3]
    assert keep_best({0: None}, 1) == []


def test_optuna_chooses_inside_the_range_and_the_same_again() -> None:
    pytest.importorskip("optuna")
    space = {"a": Range(1e-4, 1e-2, is_whole=False), "b": Choices(("x", "y")), "c": Range(1, 3, is_whole=True)}
    past: list[tuple[dict[str, str], float | None]] = []
    for number in range(12):
        chosen = choose_settings(space, number, 12, 7, past)
        assert chosen == choose_settings(space, number, 12, 7, past)
        assert 1e-4 <= float(chosen["a"]) <= 1e-2
        assert chosen["b"] in ("x", "y")
        assert chosen["c"] in ("1", "2", "3")
        past.append((chosen, None if number == 3 else float(chosen["a"])))
    assert len({tuple(settings.values()) for settings, _ in past}) == 12
    others = [choose_settings(space, 0, 12, seed, []) for seed in range(3)]
    assert len({tuple(one.values()) for one in others}) == 3


@pytest.fixture(scope="module")
def swept(build_tiny_values: Callable[[Path], dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> mw.Sweep:
    folder = tmp_path_factory.mktemp("sweeps")
    values = build_tiny_values(folder / "runs")
    values["training"] |= BUDGET
    return run(values, folder / "sweep")


def test_the_best_trial_is_the_run_that_its_settings_give(swept: mw.Sweep, tmp_path: Path) -> None:
    assert [len(trial.rounds) for trial in swept.trials].count(2) == 1
    assert len(swept.trials[swept.best].rounds) == 2
    first = [trial.rounds[0].loss for trial in swept.trials]
    assert first[swept.best] == min(first)
    assert swept.list_rows()[0].name == f"trial-{swept.best:03d}"
    alone = mw.train(swept.folder / "best.yaml", [f"run.out={tmp_path / 'runs'}", "run.name=alone"], console=QUIET)
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (swept.run.model, alone.folder.model))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert swept.trials[swept.best].rounds[-1].loss == alone.figures["loss"]


def test_checkpoints_of_those_given_up_are_removed_and_their_curves_stay(swept: mw.Sweep) -> None:
    for number in range(3):
        trial = swept.folder / f"trial-{number:03d}"
        assert (trial / "metrics.jsonl").is_file()
        assert (trial / "checkpoints").exists() == (number == swept.best)
    page = (swept.folder / "sweep.html").read_text(encoding="utf-8")
    assert "<td>3e-3</td>" in page
    assert page.count("<tr>") == 4


@pytest.mark.parametrize("place", [*[pytest.param(one, marks=pytest.mark.slow) for one in (2, 7)], 4])
def test_an_interrupted_sweep_ends_as_an_unbroken_one(
    place: int, values: dict[str, Any], swept: mw.Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off after a trial was paused or finished and before that was recorded."""
    out, calls = tmp_path / "again", 0

    def save(work: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == place:
            raise RunInterruptedError("interrupted", 130)
        keep(work)

    keep = sweep_module._Work._save
    with monkeypatch.context() as patch:
        patch.setattr(sweep_module._Work, "_save", save)
        with pytest.raises(RunInterruptedError):
            run(values, out)
    again = run(values, out)
    assert again.best == swept.best
    losses = [[[one.loss for one in trial.rounds] for trial in done.trials] for done in (swept, again)]
    assert losses[0] == losses[1]


@pytest.mark.slow  # settings that do not go together fail alone too, below
def test_a_failing_trial_is_left_out(values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_module, "pretrain", fail_if(sweep_module.pretrain, lambda rate: rate == 3e-3))
    done = run(values, tmp_path / "sweep")
    assert [trial.trouble is not None for trial in done.trials] == [False, True, False]
    assert done.best != 1
    assert "failed" in done.list_rows()[-1].list_cells()["held-out loss"]
    monkeypatch.setattr(sweep_module, "pretrain", fail_if(sweep_module.pretrain, lambda rate: True))
    with pytest.raises(RunError, match=r"all trials failed: .*not finite"):
        run(values, tmp_path / "other")


def test_settings_that_do_not_go_together_fail_alone(values: dict[str, Any], tmp_path: Path) -> None:
    space = ("model.hidden_size=32,48", "model.num_attention_heads=2,3")
    done = run(values, tmp_path / "sweep", *space, keep_one_of=1)
    troubled = [trial.settings for trial in done.trials if trial.trouble is not None]
    assert troubled == [{"model.hidden_size": "32", "model.num_attention_heads": "3"}]


def fail_if(train: Callable[..., Any], fails: Callable[[float], bool]) -> Callable[..., Any]:
    def call(config: mw.Config, **options: Any) -> Any:
        if fails(config.optimizer.learning_rate):
            raise BadStepsError("the loss is not finite")
        return train(config, **options)

    return call


def test_nothing_is_overwritten_or_mixed(values: dict[str, Any], swept: mw.Sweep, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    shutil.copytree(swept.folder, folder)
    before = (folder / "sweep.json").read_bytes()
    with pytest.raises(InputError, match="holds a finished sweep"):
        run(values, folder)
    with pytest.raises(InputError, match="another config"):
        run(values, folder, RATES, "training.max_steps=5")
    with pytest.raises(InputError, match="another space"):
        run(values, folder, "masking.ratio=0.2,0.3,0.4")
    assert (folder / "sweep.json").read_bytes() == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="is no sweep"):
        run(values, tmp_path / "mine", overwrite=True)
    anew = run(values, folder, "masking.ratio=0.2,0.4", overwrite=True)
    assert [trial.settings["masking.ratio"] for trial in anew.trials] == ["0.2", "0.4"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["optimizer.learning_rate=1e-3,high"], "optimizer.learning_rate"),
        (["optimizer.lerning_rate=1e-3,1e-4"], "did you mean"),
        ([RATES, "run.name=mine"], "run.name=mine is given"),
        ([RATES, "training.final_evaluation=false"], "compares runs by it"),
    ],
)
def test_mistakes_are_told_before_the_first_run(
    settings: list[str], message: str, values: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        run(values, tmp_path / "sweep", *settings)
    assert not (tmp_path / "sweep").exists()


def test_torchrun_is_refused(values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(InputError, match="without torchrun"):
        run(values, tmp_path / "sweep")


def test_the_command_shows_a_table_and_where_the_best_is(command: Any, values: dict[str, Any], tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(values))
    out = tmp_path / "sweep"
    result = command("sweep", config, "masking.ratio=0.15,0.3", "--keep-one-of", 2, "--out", out)
    assert result.code == 0, result.err
    assert "2 trials of masking.ratio 0.15, 0.3" in result.out
    assert "as long as 1.5 whole runs" in result.out
    assert f"maskwright train {out / 'best.yaml'} run.name=best" in result.out
    assert (out / "sweep.html").is_file()
    command("sweep", config, "masking.ratio=0.15,0.3", "--keep-one-of", 2, "--out", out).assert_refused("finished")
