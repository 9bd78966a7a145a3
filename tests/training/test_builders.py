from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import maskwright
from maskwright.errors import InputError
from maskwright.sections.training import OptimizerConfig, ScheduleConfig
from maskwright.training.optim.builders import learning_rate_schedule_builder, optimizer_builder

COSINE = {
    "type": "cosine_decay",
    "learning_rate": 5e-5,
    "decay_steps": 100,
    "warmup_steps": 10,
    "warmup_start_lr": 1e-8,
    "alpha": 1e-6,
}
ADAMW = {"type": "adamw", "weight_decay": 0.01, "gradient_clipping_by_norm": 1.0}


def test_builders_are_names_of_the_package():
    assert maskwright.optimizer_builder is optimizer_builder
    assert maskwright.learning_rate_schedule_builder is learning_rate_schedule_builder


def test_cosine_dictionary_gives_its_curve():
    schedule = learning_rate_schedule_builder(COSINE)
    assert schedule(0) == pytest.approx(1e-8)
    assert schedule(5) == pytest.approx(1e-8 + (5e-5 - 1e-8) / 2)
    assert schedule(10) == pytest.approx(5e-5)
    floor = 5e-5 * 1e-6
    for step in (30, 55, 99):
        height = (1 + math.cos(math.pi * (step - 10) / 90)) / 2
        assert schedule(step) == pytest.approx(floor + (5e-5 - floor) * height)
    assert schedule(100) == schedule(5000) == pytest.approx(floor)


@pytest.mark.parametrize(
    ("settings", "middle"),
    [
        ({"type": "polynomial_decay", "power": 2.0}, 0.25),
        ({"type": "linear"}, 0.5),
        ({"type": "wsd", "decay_share": 0.5}, 1.0),
        ({"type": "constant"}, 1.0),
    ],
)
def test_every_shape_can_be_built(settings, middle):
    values = {"learning_rate": 1e-3, "decay_steps": 100, "warmup_steps": 0, "alpha": 0.0, **settings}
    schedule = learning_rate_schedule_builder(values)
    assert schedule(0) == pytest.approx(1e-3)
    assert schedule(50) == pytest.approx(middle * 1e-3)
    assert schedule(100) == pytest.approx(1e-3 if settings["type"] == "constant" else 0.0)


def test_constant_is_constant_unless_a_warmup_is_asked_for():
    plain = learning_rate_schedule_builder({"type": "constant", "learning_rate": 1e-3})
    assert [plain(step) for step in (0, 1, 10_000)] == [1e-3] * 3
    values = {"type": "constant", "learning_rate": 1e-3, "warmup_steps": 4, "warmup_start_lr": 0.0}
    warmed = learning_rate_schedule_builder(values)
    assert [warmed(step) for step in (0, 2, 4, 9)] == [0.0, 5e-4, 1e-3, 1e-3]


@pytest.mark.parametrize("settings", [{"type": "linear"}, {"type": "constant", "warmup_share": 0.1}])
def test_a_schedule_that_ends_with_the_run_cannot_be_asked_for_a_rate(settings):
    schedule = learning_rate_schedule_builder({"learning_rate": 1e-3, **settings})
    with pytest.raises(InputError, match="set decay_steps"):
        schedule(3)


def test_optimizer_dictionary_with_its_schedule_steps_a_model():
    built = optimizer_builder(ADAMW, learning_rate_schedule_builder(COSINE))
    assert built.config == OptimizerConfig(learning_rate=5e-5, weight_decay=0.01, gradient_clipping_by_norm=1.0)
    assert built.schedule == ScheduleConfig(
        type="cosine_decay", decay_steps=100, warmup_steps=10, warmup_start_lr=1e-8, alpha=1e-6
    )
    model = nn.Linear(3, 2)
    optimizers = built.build(model)
    (adamw,) = optimizers.optimizers
    assert isinstance(adamw, torch.optim.AdamW)
    assert {group["lr"] for group in adamw.param_groups} == {5e-5}
    before = model.weight.detach().clone()
    model(torch.ones(1, 3)).sum().backward()
    optimizers.step()
    assert not torch.equal(model.weight, before)


def test_a_number_is_a_constant_rate():
    built = optimizer_builder({"type": "lion"}, 3e-4)
    assert built.config.learning_rate == 3e-4
    assert (built.schedule.type, built.schedule.warmup_steps) == ("constant", 0)


def test_muon_has_a_second_rate_of_its_own():
    schedule = learning_rate_schedule_builder({"type": "constant", "learning_rate": 1e-3})
    optimizers = optimizer_builder({"type": "muon", "muon_learning_rate": 0.03}, schedule).build(nn.Linear(3, 2))
    assert [group["lr"] for group in optimizers.groups] == [0.03, 1e-3]


def test_dictionaries_stay_as_they_were():
    schedule, optimizer = {"type": "constant", "learning_rate": 1e-3}, {"type": "sgd"}
    optimizer_builder(optimizer, learning_rate_schedule_builder(schedule))
    assert schedule == {"type": "constant", "learning_rate": 1e-3}
    assert optimizer == {"type": "sgd"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"type": "cosine_decy"}, r"unknown learning-rate schedule type 'cosine_decy'; did you mean 'cosine_decay'\?"),
        ({"decay_step": 5}, r"unknown configuration key 'decay_step'; did you mean 'decay_steps'\?"),
        ({"alpha": 2.0}, r"'alpha' is 2\.0: .*less than or equal to 1"),
        ({"learning_rate": 0}, r"'learning_rate' is 0: .*greater than 0"),
        ({"warmup_steps": 100}, r"^warmup_steps is 100, decay_steps 100"),
    ],
)
def test_mistakes_in_a_schedule_are_explained(change, message):
    with pytest.raises(InputError, match=message):
        learning_rate_schedule_builder({**COSINE, **change})


def test_a_schedule_needs_its_peak():
    with pytest.raises(InputError, match="no learning_rate"):
        learning_rate_schedule_builder({"type": "constant"})


@pytest.mark.parametrize(
    ("settings", "schedule", "message"),
    [
        ({"type": "adamv"}, 1e-3, r"unknown optimizer type 'adamv'; did you mean 'adamw'\?"),
        ({"weight_decy": 0.1}, 1e-3, r"unknown configuration key 'weight_decy'; did you mean 'weight_decay'\?"),
        ({"beta1": 1.0}, 1e-3, r"'beta1' is 1\.0"),
        ({"learning_rate": 1e-3}, 1e-3, "learning_rate of its own"),
        ({"type": "adamw"}, -1.0, "greater than 0"),
        ({"type": "adamw"}, COSINE, "schedule is a dict"),
        ("adamw", 1e-3, "described by a str"),
    ],
)
def test_mistakes_in_an_optimizer_are_explained(settings, schedule, message):
    with pytest.raises(InputError, match=message):
        optimizer_builder(settings, schedule)
