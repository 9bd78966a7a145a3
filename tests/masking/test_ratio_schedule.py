import pytest

from maskwright.masking.strategies import compute_mask_ratio


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.30, 0.30, 0.30, 0.30]),
        ("linear", [0.30, 0.2625, 0.225, 0.15]),
        ("cosine", [0.30, 0.278033, 0.225, 0.15]),
        ("step", [0.30, 0.30, 0.15, 0.15]),
    ],
)
def test_ratio_at_start_quarter_half_and_end(schedule, expected):
    actual = [compute_mask_ratio(schedule, 0.30, 0.15, progress) for progress in (0.0, 0.25, 0.5, 1.0)]
    assert actual == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("schedule", ["linear", "cosine", "step"])
def test_progress_beyond_the_run_stays_at_the_end(schedule):
    assert compute_mask_ratio(schedule, 0.30, 0.15, 1.7) == pytest.approx(0.15)
