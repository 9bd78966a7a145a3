"""Two processes give what one gives: losses, norms, evaluations, masks and weights."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_jobs import build_loader, train
from safetensors.torch import load_file

from tolerances import count_terms, rounding

_FSDP = {"parallel": "fsdp"}
_VARIANTS: dict[str, dict[str, Any]] = {
    "ddp-adamw": {},
    "ddp-muon": {"optimizer": {"type": "muon"}},
    "fsdp-adamw": {"training": _FSDP},
    "fsdp-muon": {"training": _FSDP, "optimizer": {"type": "muon"}},
    "ddp-micro": {"training": {"micro_batch_tokens": 16}},
    "fsdp-micro": {"training": _FSDP | {"micro_batch_tokens": 16}},
    "ddp-average": {"training": {"average_decay": 0.8, "evaluate_every_steps": 3}},
    "fsdp-average": {"training": _FSDP | {"average_decay": 0.8, "evaluate_every_steps": 3}},
    "fsdp-early": {"training": _FSDP | {"epochs": 4}, "early_stopping": True},
    "stop-step": {"training": {"evaluate_every_steps": 5}, "stop_at": 5},
    "stop-epoch": {"stop_after_epoch": 0},
    "scaled": {"optimizer": {"scale_with_processes": "linear"}},
    "ddp-save": {"save_at": 3},
    "fsdp-save": {"training": _FSDP, "save_at": 3},
    "ddp-diffusion": {"is_diffusion": True},
    "fsdp-diffusion": {"is_diffusion": True, "training": _FSDP | {"micro_batch_tokens": 16}},
}
_ONLY_TWO: dict[str, dict[str, Any]] = {
    "ddp-resumed": {"resume": "one-save/step-3"},
    "fsdp-resumed": {"training": _FSDP, "resume": "one-save/step-3"},
    "ddp-poisoned": {"poison_call": 3},
    "fsdp-poisoned": {"training": _FSDP, "poison_call": 3},
    "ddp-bf16": {"training": {"gradient_dtype": "bf16"}},
    "ddp-adaptive": {"strategy": "adaptive"},
    "fsdp-adaptive": {"strategy": "adaptive", "training": _FSDP},
    "fsdp-bf16": {"training": _FSDP | {"gradient_dtype": "bf16", "micro_batch_tokens": 16}},
    "seconds": {"training": {"epochs": 10**6, "max_seconds": 0.6}},
}
_SLOW = {
    "ddp-muon",
    "fsdp-adamw",
    "fsdp-micro",
    "ddp-average",
    "stop-epoch",
    "ddp-save",
    "fsdp-resumed",  # test_checkpoint_parts.py goes on with a sharded model
    "fsdp-poisoned",
    "ddp-bf16",
    "fsdp-adaptive",
    "fsdp-diffusion",
}
"""What each of them does, another one does with the other way of sharing the work, or another optimizer."""
_MOST_STEPS = 12
_TOLERANCE = rounding(_MOST_STEPS * 2 * count_terms(num_layers=2, width=16, length=16))


def mark_slow(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.slow) if name in _SLOW else name for name in names]


def list_asked(session: pytest.Session) -> set[str]:
    """The variants that the selected tests look at."""
    here = [item for item in session.items if isinstance(item, pytest.Function) and item.path == Path(__file__)]
    named = {item.callspec.params["name"] for item in here if hasattr(item, "callspec")}
    return named | {"ddp-adamw", "scaled", "seconds"}


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest, prestarted: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Variants in two processes, of which some go on from a checkpoint of one process."""
    folder = tmp_path_factory.mktemp("ranks")
    assert len(build_loader(30, 1)) % 4 % 2, "the last batch must not divide"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    train(folder, "one-save", save_at=3)
    torch.set_num_threads(threads)
    asked = list_asked(request.session)
    variants = {name: variant for name, variant in (_VARIANTS | _ONLY_TWO).items() if name in asked}
    arguments = {"folder": str(folder), "variants": variants}
    ranks = prestarted.start_ranks("rank_jobs:train_all", arguments, folder / "said", 2)
    for rank in ranks:
        assert rank.wait(200.0) == 0, rank.text()
    return folder


def read(folder: Path, name: str, rank: int = 0) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((folder / f"{name}-rank{rank}.json").read_text())
    return facts


def largest_difference(folder: Path, one: str, two: str) -> float:
    first, second = load_file(folder / f"{one}.safetensors"), load_file(folder / f"{two}.safetensors")
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def flatten(values: Any) -> list[float]:
    if isinstance(values, dict):
        values = [values[key] for key in sorted(values)]
    return [number for value in values for number in flatten(value)] if isinstance(values, list) else [float(values)]


def merge_masks(folder: Path, name: str, per_step: int = 1) -> list[list[list[int]]]:
    """The masked tokens of both ranks, step by step."""
    steps = []
    shares = [read(folder, name, rank)["masks"] for rank in (0, 1)]
    for index in range(0, len(shares[0]), per_step):
        steps.append(sorted(token for share in shares for part in share[index : index + per_step] for token in part))
    return steps


@pytest.mark.parametrize("name", mark_slow(name for name in _VARIANTS if name != "scaled"))
def test_two_processes_train_like_one(folder: Path, name: str) -> None:
    variant = dict(_VARIANTS[name])
    train(folder, f"{name}-alone", **variant)
    one, two = read(folder, f"{name}-alone"), read(folder, name)
    assert two["steps"] == one["steps"]
    assert [sorted(line) for line in two["lines"]] == [sorted(line) for line in one["lines"]]
    expected = pytest.approx(flatten(one["lines"]), abs=_TOLERANCE, rel=_TOLERANCE, nan_ok=True)
    assert flatten(two["lines"]) == expected  # a batch of a few tokens may have none masked, and no accuracy
    assert flatten(two["history"]) == pytest.approx(flatten(one["history"]), abs=_TOLERANCE, rel=_TOLERANCE)
    assert two["final_loss"] == pytest.approx(one["final_loss"], abs=_TOLERANCE)
    difference = largest_difference(folder, f"{name}-alone", name)
    assert two["steps"] <= _MOST_STEPS
    assert difference < _TOLERANCE, f"largest difference of a weight {difference:.1e}"


@pytest.mark.parametrize("name", ["ddp-adamw", "fsdp-muon"])
def test_two_processes_see_the_samples_and_masks_of_one(folder: Path, name: str) -> None:
    assert merge_masks(folder, name) == read(folder, "one-save")["masks"]


@pytest.mark.parametrize("name", mark_slow(["ddp-adaptive", "fsdp-adaptive"]))
def test_two_processes_learn_alike_what_is_hard(folder: Path, name: str) -> None:
    train(folder, "adaptive-alone", strategy="adaptive")
    masks = merge_masks(folder, name)
    assert masks == read(folder, "adaptive-alone")["masks"]
    assert masks[3:] != read(folder, "one-save")["masks"][3:], "the table changes masks"
    assert largest_difference(folder, "adaptive-alone", name) < _TOLERANCE


def test_two_processes_mask_the_same_share_of_each_sample_as_one(folder: Path) -> None:
    train(folder, "diffusion-alone", is_diffusion=True)
    masks = merge_masks(folder, "ddp-diffusion")
    assert masks == read(folder, "diffusion-alone")["masks"]
    assert masks != read(folder, "one-save")["masks"]


@pytest.mark.parametrize("name", mark_slow(["ddp-resumed", "fsdp-resumed"]))
def test_a_run_of_one_process_goes_on_in_two(folder: Path, name: str) -> None:
    assert merge_masks(folder, name) == read(folder, "one-save")["masks"][3:]
    assert largest_difference(folder, "one-save", name) < _TOLERANCE


@pytest.mark.parametrize("name", mark_slow(["ddp-save", "fsdp-save"]))
def test_a_run_of_two_processes_goes_on_in_one(folder: Path, name: str) -> None:
    train(folder, f"{name}-rest", resume=f"{name}/step-3")
    assert read(folder, f"{name}-rest")["masks"] == read(folder, "one-save")["masks"][3:]
    assert largest_difference(folder, "one-save", f"{name}-rest") < _TOLERANCE


@pytest.mark.parametrize("name", mark_slow(["ddp-poisoned", "fsdp-poisoned"]))
def test_a_bad_loss_of_one_process_skips_the_step_in_both(folder: Path, name: str) -> None:
    ranks = [read(folder, name, rank) for rank in (0, 1)]
    assert [rank["skipped"] for rank in ranks] == [1, 1]
    assert ranks[0]["steps"] == ranks[1]["steps"] == read(folder, "one-save")["steps"]
    assert all(torch.isfinite(tensor).all() for tensor in load_file(folder / f"{name}.safetensors").values())


@pytest.mark.parametrize("name", mark_slow(["ddp-bf16", "fsdp-bf16"]))
def test_gradients_summed_in_bf16_differ_by_their_rounding(folder: Path, name: str) -> None:
    """A step of Adam is at most the learning rate, and as much wrong, relatively, as the gradient twice over.

    Each gradient of two processes is rounded, and their sum.
    """
    roundoff, learning_rate = torch.finfo(torch.bfloat16).eps / 2, 1e-2
    bound = _MOST_STEPS * learning_rate * 2 * 3 * roundoff
    difference = largest_difference(folder, "one-save", name)
    assert read(folder, name)["steps"] == read(folder, "one-save")["steps"] <= _MOST_STEPS
    assert _TOLERANCE < difference < bound, f"largest difference of a weight {difference:.1e}"


@pytest.mark.slow
def test_compiled_layers_train_alike_in_two_processes(prestarted: Any, tmp_path: Path) -> None:
    arguments = {"folder": str(tmp_path)}
    for rank in prestarted.start_ranks("rank_jobs:train_compiled", arguments, tmp_path / "said", 2):
        assert rank.wait(200.0) == 0, rank.text()
    train(tmp_path, "alone")
    assert largest_difference(tmp_path, "alone", "compiled") < _TOLERANCE


def test_both_processes_stop_at_the_same_step_when_the_time_is_up(folder: Path) -> None:
    steps = [read(folder, "seconds", rank)["steps"] for rank in (0, 1)]
    assert steps[0] == steps[1] > 0


def test_the_learning_rate_grows_with_the_processes(folder: Path) -> None:
    rates = [line["lr"] for line in read(folder, "scaled")["lines"]]
    assert rates == pytest.approx([2 * line["lr"] for line in read(folder, "one-save")["lines"]])


def test_only_the_main_process_logs(folder: Path) -> None:
    assert read(folder, "ddp-adamw", 1)["lines"] == []
    steps = [line["step"] for line in read(folder, "ddp-adamw")["lines"]]
    assert steps == sorted(set(steps))
