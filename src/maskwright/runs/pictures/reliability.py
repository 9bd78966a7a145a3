"""How far probabilities can be believed: the share of right answers against their confidence."""

from __future__ import annotations

from maskwright.runs.pictures.style import BLUE, GREY, ORANGE, Picture, render
from maskwright.tasks.sequence.classification import NUM_BINS, Calibration


def draw_reliability(calibration: Calibration) -> Picture:
    """Above the accuracy of each bin of confidence, below how many answers are in it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.2, 6.2), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    width = 1.0 / NUM_BINS
    is_filled = calibration.counts > 0
    left = [number * width for number in range(NUM_BINS)]
    filled = [one for one, there in zip(left, is_filled.tolist(), strict=True) if there]
    upper.bar(filled, calibration.accuracy[is_filled].numpy(), width, align="edge", color=BLUE, edgecolor="white")
    upper.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1, label="as right as it says")
    upper.plot(
        calibration.confidence[is_filled].numpy(),
        calibration.accuracy[is_filled].numpy(),
        color=ORANGE,
        marker="o",
        linestyle="none",
        label="mean confidence of the bar",
    )
    upper.set(ylabel="share of right answers", xlim=(0, 1), ylim=(0, 1.02))
    upper.legend(loc="upper left", frameon=False)
    lower.bar(left, calibration.counts.numpy(), width, align="edge", color=GREY, edgecolor="white")
    lower.set(xlabel="confidence (probability of the answer)", ylabel="answers")
    for axes in (upper, lower):
        axes.grid(alpha=0.25)
        axes.set_axisbelow(True)
    return Picture("Reliability", _describe(calibration), render(figure))


def _describe(calibration: Calibration) -> str:
    share = calibration.counts / calibration.counts.sum()
    gap = float((share * (calibration.confidence - calibration.accuracy)).sum())
    side = "too sure" if gap > 0 else "too modest"
    return (
        f"Bars under the diagonal are answers that were too sure, bars over it too modest. Expected calibration error"
        f" {calibration.error:.3f}; on the whole {abs(gap):.3f} {side}."
    )
