"""Every objective and masking strategy for the same number of tokens, on the corpus that Python carries.

All masked models answer the same questions: fixed masks on 15% of single tokens of the held-out text, whatever they
were trained on; for replaced-token detection the generator does. A causal model answers next tokens, whose loss is
another quantity.

    python benchmarks/objectives.py --tokens 2000000 --seeds 3 --jobs 4
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

import maskwright as mw

PLAIN = "mlm, single tokens, ratio 0.30 -> 0.15"
VARIANTS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    "mlm, single tokens, ratio 0.15": {"masking": {"ratio": 0.15, "final_ratio": None}},
    "mlm, single tokens, ratio 0.30": {"masking": {"ratio": 0.30, "final_ratio": None}},
    "mlm, all masked become [MASK]": {"masking": {"random_token_ratio": 0.0, "unchanged_ratio": 0.0}},
    "mlm, a coin per token": {"masking": {"selection": "bernoulli"}},
    "mlm, whole words": {"masking": {"strategy": "whole_word"}},
    "mlm, spans": {"masking": {"strategy": "span"}},
    "hybrid, 25% causal": {"training": {"mode": "hybrid", "causal_share": 0.25}},
    "hybrid, 50% causal": {"training": {"mode": "hybrid", "causal_share": 0.5}},
    "clm until 25%, then mlm": {"objective": [{"mode": "clm", "until": 0.25}, {"mode": "mlm"}]},
    "mlm and next sentence": {"pairs": {"task": "nsp"}},
    "mlm and sentence order": {"pairs": {"task": "sop"}},
    "rtd": {"training": {"mode": "rtd"}},
    "clm": {"training": {"mode": "clm"}},
}


def measure(arguments: argparse.Namespace, folder: Path, name: str, seed: int) -> dict[str, float]:
    changes = VARIANTS[name]
    training = {
        "max_tokens": arguments.tokens,
        "max_seconds": None,
        "epochs": 1000,
        "device": arguments.device,
        "checkpoint_every_steps": 10**6,
        **changes.get("training", {}),
    }
    run = {"name": f"{list(VARIANTS).index(name)}-{seed}", "out": str(folder), "seed": seed}
    config = mw.Config.from_preset("quickstart", {**changes, "training": training, "run": run})
    figures = mw.pretrain(config, console=Console(quiet=True)).figures
    loss = figures.get("generator_loss", figures.get("mlm_loss", figures["loss"]))
    return {"loss": loss, "accuracy": figures["accuracy"], "unigram_loss": figures["unigram_loss"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=300_000, help="tokens of each run, padding included")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, each in a process of its own")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", nargs="+", choices=list(VARIANTS), default=list(VARIANTS), metavar="VARIANT")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    print(f"quickstart model, {arguments.tokens:,} tokens, {arguments.seeds} seed(s)")
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(arguments.jobs, context) as pool:
        run = partial(pool.submit, measure, arguments, Path(folder))
        started = {name: [run(name, seed) for seed in range(arguments.seeds)] for name in arguments.only}
        for name, futures in started.items():
            runs = [future.result() for future in futures]
            losses = [one["loss"] for one in runs]
            results[name] = {
                "loss": statistics.fmean(losses),
                "spread": statistics.stdev(losses) if len(losses) > 1 else float("nan"),
                "accuracy": statistics.fmean(one["accuracy"] for one in runs),
                "gain": statistics.fmean(one["unigram_loss"] - one["loss"] for one in runs),
            }
            figures = results[name]
            print(
                f"{name:<40} loss {figures['loss']:.3f} +- {figures['spread']:.3f}  accuracy {figures['accuracy']:.1%}"
                f"  {figures['gain']:.2f} nats under unigram",
                flush=True,
            )
    masked = {name: figures["gain"] for name, figures in results.items() if name != "clm"}
    ratio = max(masked.values()) / masked[PLAIN] if PLAIN in masked else float("nan")
    if arguments.json:
        arguments.json.write_text(json.dumps({**results, "ratio": ratio}, indent=2) + "\n")
    print(f"ratio {ratio:.2f}x")


if __name__ == "__main__":
    main()
