"""The chart of docs/benchmarks.md: real tokens per second of recorded training steps, ours beside those of the peers.

Reads what `train_step.py --json` wrote; the machine of each group is named in its file.

    python benchmarks/chart.py
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

HERE = Path(__file__).parent
COLORS = {"transformers": "#b8b8b8", "keras-hub": "#d9a566", "maskwright": "#2a6f97"}


def list_bars(results: dict[str, Any]) -> list[tuple[str, str, float]]:
    """Label, side and thousands of real tokens a second of every row."""
    return [
        (
            f"{row['side']}, {'compiled' if row['compiled'] else 'eager'}, dropout {row['dropout']:g}",
            row["side"],
            row["real_tokens_per_s"] / 1e3,
        )
        for row in results["rows"]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "images" / "speed.png")
    arguments = parser.parse_args()
    recorded = [json.loads(path.read_text()) for path in sorted(arguments.results.glob("*.json"))]
    recorded = [one for one in recorded if "rows" in one]
    if not recorded:
        raise SystemExit(f"{arguments.results} holds no result of train_step.py --json")
    heights = [len(one["rows"]) for one in recorded]
    figure, axes = plt.subplots(
        len(recorded), 1, figsize=(9, 0.42 * sum(heights) + 1.3 * len(recorded)), height_ratios=heights, squeeze=False
    )
    for axis, results in zip(axes[:, 0], recorded, strict=True):
        bars = list_bars(results)[::-1]
        values = [value for _, _, value in bars]
        axis.barh([label for label, _, _ in bars], values, color=[COLORS[side] for _, side, _ in bars])
        digits = 0 if max(values) >= 100 else 2
        for place, value in enumerate(values):
            axis.text(value, place, f" {value:,.{digits}f}", va="center", fontsize=9)
        axis.set_title(f"{results['title']}\n{results['machine']}", fontsize=10, loc="left")
        axis.set_xlim(0, 1.12 * max(values))
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=9)
    axes[-1, 0].set_xlabel("thousand real tokens per second (padding not counted)", fontsize=9)
    figure.tight_layout()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.out, dpi=110)
    print(arguments.out)


if __name__ == "__main__":
    main()
