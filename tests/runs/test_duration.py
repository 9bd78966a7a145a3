"""Runs of hours say so before hours are spent, and are not changed by that."""

from __future__ import annotations

import math
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from maskwright.config import build_config
from maskwright.runs import duration
from maskwright.runs.duration import DurationNotice, suggest_shorter_run
from maskwright.runs.pretrain import pretrain
from maskwright.sections.training import TrainingConfig
from maskwright.training.state import Budget, TrainingState


def run(values: dict[str, Any], name: str, **training: Any) -> tuple[list[str], bytes]:
    """The lines of a run, and its last weights."""
    values = values | {"run": values["run"] | {"name": name}, "training": values["training"] | training}
    console = Console(file=StringIO())
    folder = pretrain(build_config(values), console=console).folder
    return console.file.getvalue().splitlines(), (folder.model / "model.safetensors").read_bytes()  # type: ignore[attr-defined]


def find_notices(lines: list[str]) -> list[int]:
    return [number for number, line in enumerate(lines) if line.startswith("about ")]


@pytest.mark.parametrize("task", [pytest.param(None, marks=pytest.mark.slow), "nsp"])
def test_a_long_run_on_a_cpu_is_announced_before_its_first_step_and_not_changed(
    tiny_values: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sentences: list[str], task: str | None
) -> None:
    tiny_values["training"]["precision"] = "fp32"
    if task is not None:  # documents of several sentences
        (tmp_path / "pairs.jsonl").write_text("".join(f'{{"text": "{one} {one}"}}\n' for one in sentences))
        tiny_values |= {"pairs": {"task": task}, "data": tiny_values["data"] | {"train": str(tmp_path / "pairs.jsonl")}}
    with monkeypatch.context() as patch:
        patch.setattr(DurationNotice, "on_train_begin", lambda notice: None)
        _, unmeasured = run(tiny_values, "unmeasured")
    lines, measured = run(tiny_values, "short")
    assert find_notices(lines) == []  # seconds are not worth a word
    monkeypatch.setattr(duration, "_LONG_S", 0.0)
    lines, announced = run(tiny_values, "long")
    (number,) = find_notices(lines)
    assert number < next(place for place, line in enumerate(lines) if line.startswith("step "))
    assert " for 12 steps at " in lines[number]
    assert lines[number].endswith(" tokens/s on cpu; Ctrl-C is safe, the same command resumes")
    assert lines[number + 1].startswith(
        "shorter: training.max_seconds=3600; a small model in minutes: maskwright train"
    )
    assert unmeasured == measured == announced


def test_a_run_with_less_time_is_not_measured(tiny_values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duration, "measure_place_s", lambda *arguments: pytest.fail("measured"))
    run(tiny_values, "timed", max_seconds=3599, max_steps=1)


@pytest.mark.parametrize(("is_enough", "sizes"), [(True, [1]), (False, [1, 2, 4, 7])])
def test_a_time_that_is_short_enough_is_not_measured_again(is_enough: bool, sizes: list[int]) -> None:
    asked: list[int] = []

    def build_rows(num_rows: int) -> Any:
        asked.append(num_rows)
        return SimpleNamespace(input_ids=torch.zeros(num_rows, 8))

    step = SimpleNamespace(compute_gradients=lambda *_, **__: None)
    trainer: Any = SimpleNamespace(
        engine=SimpleNamespace(begin=lambda *_: step),
        model=SimpleNamespace(mask_ratio=0.3),
        optimizers=SimpleNamespace(zero_grad=lambda: None),
        state=None,
        warn=None,
    )
    duration.measure_place_s(trainer, build_rows, 7, lambda place_s: is_enough)
    assert asked == sizes


def build_notice(said: list[str], state: TrainingState, training: TrainingConfig, **budget: Any) -> DurationNotice:
    """Of batches of 8 rows of 16 tokens."""
    notice = DurationNotice(lambda rows: pytest.fail("measured"), 8, 16, "shorter: less", said.append)
    engine = SimpleNamespace(device=SimpleNamespace(type="cuda", __str__=lambda: "cuda"), is_compiled=True)
    notice.trainer = SimpleNamespace(  # type: ignore[assignment]
        budget=Budget(**budget), state=state, config=training, engine=engine, stop_training=False
    )
    return notice


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        ({"expected_batches": 50}, (50, 50 * 128.0)),
        ({"expected_batches": 50, "max_steps": 20}, (20, 20 * 128.0)),
        ({"expected_batches": 50, "max_tokens": 128 * 7}, (7, 7 * 128.0)),
        ({"expected_batches": 50, "max_seconds": 300.0}, (3, 300.0)),
    ],
)
def test_the_nearest_limit_decides(budget: dict[str, Any], expected: tuple[int, float]) -> None:
    assert build_notice([], TrainingState(), TrainingConfig(), **budget).estimate(1.0) == expected


def test_a_resumed_run_is_told_what_is_left() -> None:
    state = TrainingState(step=30, num_batches=30, num_places=30 * 128)
    assert build_notice([], state, TrainingConfig(), expected_batches=50).estimate(1.0) == (20, 20 * 128.0)


def test_steps_of_several_batches_take_so_much_longer() -> None:
    growing = TrainingConfig(batch_tokens=512, batch_tokens_start=128)
    assert build_notice([], TrainingState(), growing, expected_batches=math.inf, max_steps=10).estimate(1.0) == (
        10,
        10 * 512.0,
    )


def test_on_a_gpu_the_first_log_line_tells() -> None:
    said: list[str] = []
    notice = build_notice(said, TrainingState(step=10), TrainingConfig(), max_steps=1000)
    notice.on_train_begin()
    assert said == []
    for step in (10, 20):
        progress = step / 1000
        notice.on_log({"step": step, "progress": progress, "elapsed_s": 80.0 * step, "tokens_per_s": 1234.5})
    (line,) = said
    assert line.startswith("about 22.0 hours for 990 more steps at 1,234 tokens/s on ")
    assert line.endswith("the same command resumes\nshorter: less")


def test_what_is_suggested_fits_the_run(tmp_path: Path) -> None:
    own = build_config({"data": {"train": "my texts.txt"}, "schedule": {"warmup_steps": 9, "decay_steps": 99}})
    assert suggest_shorter_run(own) == (
        "shorter: training.max_seconds=3600 schedule.decay_steps=null schedule.warmup_steps=null;"
        " a small model in minutes: maskwright train 'data.train=my texts.txt' run.name=small"
    )
    continued = build_config({"model": {"from": "bert-base-uncased"}})
    assert suggest_shorter_run(continued) == "shorter: training.max_seconds=3600"
