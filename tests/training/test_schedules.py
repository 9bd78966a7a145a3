from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskwright.sections.training import ScheduleConfig
from maskwright.training.optim.schedules import compute_learning_rate, scale_learning_rate
from maskwright.training.state import Budget, TrainingState

PEAK = 2e-3


def rates(config: ScheduleConfig, num_steps: int = 100) -> list[float]:
    """The rate of every step of a run, and the rate its end would have."""
    return [compute_learning_rate(config, PEAK, step, step / num_steps) for step in range(num_steps + 1)]


@pytest.mark.parametrize("warmup", [{"warmup_steps": 20}, {"warmup_share": 0.2}])
def test_warmup_rises_in_a_line_from_its_start_to_the_peak(warmup):
    values = rates(ScheduleConfig(type="constant", warmup_start_lr=1e-4, **warmup))
    for step in range(20):
        assert values[step] == pytest.approx(1e-4 + (PEAK - 1e-4) * step / 20)
    assert values[20:] == [PEAK] * 81


@pytest.mark.parametrize("warmup", [{"warmup_steps": 20}, {"warmup_share": 0.2}])
@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        ({"type": "cosine_decay"}, lambda done: (1 + math.cos(math.pi * done)) / 2),
        ({"type": "linear"}, lambda done: 1 - done),
        ({"type": "linear", "power": 3.0}, lambda done: 1 - done),
        ({"type": "polynomial_decay"}, lambda done: 1 - done),
        ({"type": "polynomial_decay", "power": 2.0}, lambda done: (1 - done) ** 2),
        ({"type": "wsd", "decay_share": 0.4}, lambda done: min(1.0, 0.8 * (1 - done) / 0.4)),
    ],
)
def test_decay_goes_from_the_peak_to_alpha_of_it(warmup, settings, shape):
    values = rates(ScheduleConfig(alpha=0.1, **warmup, **settings))
    assert values[20] == pytest.approx(PEAK)
    for step in range(20, 101):
        assert values[step] == pytest.approx(PEAK * (0.1 + 0.9 * shape((step - 20) / 80))), step
    assert values[100] == pytest.approx(0.1 * PEAK)


def test_wsd_falls_over_its_share_of_the_whole_run():
    values = rates(ScheduleConfig(type="wsd", decay_share=0.5, warmup_share=0.1, alpha=0.0))
    assert values[50] == pytest.approx(PEAK)
    assert values[51] < PEAK
    assert values[75] == pytest.approx(PEAK / 2)


def test_without_warmup_a_run_starts_at_the_peak():
    for warmup in ({"warmup_steps": 0}, {"warmup_share": 0.0}):
        assert rates(ScheduleConfig(type="cosine_decay", **warmup))[0] == pytest.approx(PEAK)


def test_warmup_steps_win_over_the_share():
    values = rates(ScheduleConfig(type="constant", warmup_steps=5, warmup_share=0.5))
    assert values[4] < PEAK
    assert values[5] == PEAK


def test_warmup_as_long_as_the_run_has_an_end():
    values = rates(ScheduleConfig(type="cosine_decay", warmup_steps=100, alpha=0.5))
    assert values[99] == pytest.approx(0.99 * PEAK, rel=1e-4)
    assert values[100] == pytest.approx(0.5 * PEAK)


@given(
    type=st.sampled_from(["constant", "linear", "cosine_decay", "polynomial_decay", "wsd"]),
    warmup_steps=st.none() | st.integers(0, 60),
    warmup_share=st.floats(0, 0.9),
    alpha=st.floats(0, 1),
    decay_share=st.floats(0.01, 1),
)
def test_every_run_comes_within_a_step_of_its_peak_and_never_above(
    type, warmup_steps, warmup_share, alpha, decay_share
):
    config = ScheduleConfig(
        type=type, warmup_steps=warmup_steps, warmup_share=warmup_share, alpha=alpha, decay_share=decay_share
    )
    values = rates(config, 50)
    assert all(0 <= value <= PEAK * (1 + 1e-9) for value in values)
    top = max(values[:-1])
    warmup = warmup_steps if warmup_steps is not None else 50 * warmup_share
    if warmup < 49:
        steepest = 1 / (50 * min(decay_share, 1 - warmup / 50)) if type == "wsd" else math.pi / (2 * (50 - warmup))
        assert top >= PEAK * (1 - max(steepest, 1 / (50 - warmup)) - 1e-9)


@pytest.mark.parametrize("type", ["constant", "linear", "cosine_decay", "polynomial_decay", "wsd"])
@pytest.mark.parametrize("warmup", [{"warmup_steps": 20}, {"warmup_share": 0.2}])
def test_decay_steps_end_the_schedule_wherever_the_run_ends(type, warmup):
    """As a run of that many steps, whether the real one is longer or shorter; then the last rate stays."""
    settings = {"type": type, "alpha": 0.1, "warmup_start_lr": 1e-4, **warmup}
    expected = rates(ScheduleConfig(**settings), num_steps=100)
    for num_steps in (60, 100, 250):
        values = rates(ScheduleConfig(decay_steps=100, **settings), num_steps)
        assert values[:101] == pytest.approx(expected[: num_steps + 1])
        assert values[100:] == [pytest.approx(PEAK if type == "constant" else 0.1 * PEAK)] * len(values[100:])


def test_decay_steps_take_no_notice_of_the_clock():
    config = ScheduleConfig(type="linear", decay_steps=10, warmup_steps=0, alpha=0.0)
    for progress in (0.0, 0.3, 1.0):
        assert compute_learning_rate(config, PEAK, 5, progress) == pytest.approx(PEAK / 2)


def test_a_run_bounded_by_seconds_is_scheduled_by_them():
    config = ScheduleConfig(type="linear", warmup_steps=0, alpha=0.0)
    budget = Budget(max_seconds=40.0)
    for elapsed_s, share in ((0.0, 1.0), (10.0, 0.75), (40.0, 0.0)):
        progress = budget.progress(TrainingState(step=7, elapsed_s=elapsed_s))
        assert compute_learning_rate(config, PEAK, 7, progress) == pytest.approx(share * PEAK)


@pytest.mark.parametrize("warmup_steps", [100, 101])
def test_warmup_that_leaves_no_room_for_decay_is_refused(warmup_steps):
    with pytest.raises(ValueError, match=rf"warmup_steps is {warmup_steps}, decay_steps 100"):
        ScheduleConfig(decay_steps=100, warmup_steps=warmup_steps)
    assert ScheduleConfig(decay_steps=100, warmup_steps=99).warmup_steps == 99


@pytest.mark.parametrize(("rule", "factor"), [("none", 1.0), ("linear", 4.0), ("sqrt", 2.0)])
def test_learning_rate_scales_with_processes(rule, factor):
    assert scale_learning_rate(rule, PEAK, 4) == pytest.approx(factor * PEAK)
    assert scale_learning_rate(rule, PEAK, 1) == PEAK


def test_progress_by_batches_and_steps():
    budget = Budget(expected_batches=40)
    progress = [budget.progress(TrainingState(num_batches=count, elapsed_s=1e9)) for count in (0, 10, 40, 44)]
    assert progress == [0.0, 0.25, 1.0, 1.0]
    assert not budget.is_spent(TrainingState(step=1000, num_batches=1000, elapsed_s=1e9))


def test_progress_is_that_of_the_nearest_limit():
    budget = Budget(expected_batches=100, max_steps=100, max_seconds=60.0)
    assert budget.progress(TrainingState(step=10, num_batches=10, elapsed_s=30.0)) == 0.5
    assert budget.progress(TrainingState(step=80, num_batches=80, elapsed_s=30.0)) == 0.8


def test_progress_without_known_length_follows_the_clock():
    assert Budget(max_seconds=20.0).progress(TrainingState(step=12345, elapsed_s=5.0)) == 0.25


def test_budget_is_spent_by_steps_tokens_or_seconds():
    budget = Budget(expected_batches=10, max_steps=10, max_tokens=1000, max_seconds=5.0)
    assert not budget.is_spent(TrainingState(step=9, num_places=999, elapsed_s=4.9))
    assert budget.is_spent(TrainingState(step=10))
    assert budget.is_spent(TrainingState(num_places=1000))
    assert budget.is_spent(TrainingState(elapsed_s=5.0))
