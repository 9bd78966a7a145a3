"""Does a run in fewer bits learn the same? The same recipe, seed, text and masks in each precision, side by side.

Prints the mean training loss of every stretch of steps in each precision, the held-out loss at the end, norms of the
gradient (where a run that goes astray shows first) and the tokens a second, and how far the others are from the first.
With --seeds 2 the first precision runs with another seed besides, which shows how far runs lie apart anyway.

    python benchmarks/precision_curve.py --train train.jsonl.zst --validation valid.jsonl.zst \
        --tokenizer bert-base-uncased --precisions bf16 fp8 --steps 500 --out runs/precision
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from train_step import free_memory

import maskwright as mw
from maskwright.cli.train import load_settings


@dataclass(frozen=True)
class Curve:
    precision: str
    seed: int
    steps: list[int]
    losses: list[float]
    """Means over the steps since the one before."""
    norms: list[float]
    """Of the gradient in the last step of each stretch."""
    held_out: float
    tokens_per_s: float

    @property
    def name(self) -> str:
        return f"{self.precision}, seed {self.seed}"


def train(precision: str, seed: int, arguments: argparse.Namespace) -> Curve:
    own = {
        "run.out": arguments.out,
        "run.name": f"{precision}-{seed}",
        "run.seed": seed,
        "tokenizer.path": arguments.tokenizer,
        "data.train": arguments.train,
        "data.validation": arguments.validation,
        "training.precision": precision,
        "training.max_steps": arguments.steps,
        "training.max_seconds": "null",
        "training.log_every_steps": arguments.every,
        "training.evaluate_every_steps": arguments.steps,
        "training.checkpoint_every_steps": 10**6,
    }
    words = [*(f"{key}={value}" for key, value in own.items()), *arguments.set]
    run = mw.pretrain(load_settings([arguments.recipe, *words]), overwrite=True, console=Console(quiet=True))
    free_memory()
    lines = [line for line in run.folder.read_metrics() if "lr" in line]
    rate = statistics.median(line["tokens_per_s"] for line in lines)
    steps, losses, norms = ([line[name] for line in lines] for name in ("step", "loss", "grad_norm"))
    curve = Curve(precision, seed, steps, losses, norms, run.figures["loss"], rate)
    print(f"{curve.name}: done, held-out loss {curve.held_out:.3f}", flush=True)
    return curve


def show(curves: list[Curve]) -> None:
    first = curves[0]
    print_figures("steps", [curve.name for curve in curves])
    for index, step in enumerate(first.steps):
        print_row(f"to {step}", [curve.losses[index] for curve in curves])
    print_row("held-out", [curve.held_out for curve in curves])
    print_figures("norm", [f"{statistics.median(curve.norms):.2f}, at most {max(curve.norms):.2f}" for curve in curves])
    print_figures("tokens/s", [f"{curve.tokens_per_s / 1e3:,.0f}k" for curve in curves])
    for curve in curves[1:]:
        furthest = max(abs(ours - theirs) for ours, theirs in zip(curve.losses, first.losses, strict=True))
        print(f"{curve.name} against {first.name}: at most {furthest:.3f} apart, {ratio(curve, first):.2f}x as fast")


def print_row(title: str, losses: list[float]) -> None:
    cells = [f"{losses[0]:.3f}", *(f"{loss:.3f} ({loss - losses[0]:+.3f})" for loss in losses[1:])]
    print_figures(title, cells)


def print_figures(title: str, cells: list[str]) -> None:
    print(f"{title:<10}" + "".join(f"{cell:>24}" for cell in cells))


def ratio(curve: Curve, first: Curve) -> float:
    return curve.tokens_per_s / first.tokens_per_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="modern_small", help="a recipe's name or file")
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--validation", type=Path, required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--precisions", nargs="+", default=["bf16", "fp8"])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--every", type=int, default=50, help="steps of a stretch")
    parser.add_argument("--seeds", type=int, default=1, help="of the first precision")
    parser.add_argument("--out", type=Path, default=Path("runs/precision"))
    parser.add_argument("--json", type=Path, help="write the curves here")
    parser.add_argument("--set", nargs="*", default=[], help="overrides of the recipe, key=value")
    arguments = parser.parse_args()
    first, *others = arguments.precisions
    curves = [train(first, 0, arguments), *(train(other, 0, arguments) for other in others)]
    curves += [train(first, seed, arguments) for seed in range(1, arguments.seeds)]
    show(curves)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(curve) for curve in curves], indent=2) + "\n")


if __name__ == "__main__":
    main()
