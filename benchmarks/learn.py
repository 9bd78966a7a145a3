"""How soon does a recipe reach what transformers' `run_mlm.py` reaches? Both sides on the same text and device.

The text is prepared once. The peer (benchmarks/learn_peer.py) is a BERT of 6 layers x 512, AdamW 5e-4 with 5% warm-up
and a linear fall, batches of 256 x 128, for --peer-seconds, eager as its trainer runs it or with --peer-compiled. Ours
is a recipe, run for each of --budgets: SECONDS or SECONDSxSEEDS. Compiling counts on neither side and is shown as the
time of the first step; reading data and evaluating do not count either. Both are asked the same questions: fixed masks
on 15% of the held-out tokens, and minimal pairs where files of them are given. `ratio` is the peer's seconds over
those of the smallest budget whose mean loss is not above the peer's. What was run already with the same --out is not
run again, so another recipe or --set wants another --out.

    python benchmarks/learn.py --train train.jsonl.zst --validation valid.jsonl.zst --tokenizer bert-base-uncased \
        --pairs blimp/*.jsonl --budgets 20x3 240 --out runs/learn
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from learn_peer import PeerSettings, train_peer
from rich.console import Console
from train_step import free_memory

import maskwright as mw
from maskwright.cli.train import load_settings
from maskwright.evaluation.minimal_pairs import MinimalPair, judge_pairs, read_pairs
from maskwright.evaluation.statistics import compute_seed_interval
from maskwright.models.any_encoder import find_hidden_size
from maskwright.runs.inputs import load_data, open_tokenizer
from maskwright.runs.model import load_model
from maskwright.runs.prepare import prepare
from maskwright.runs.prepare_tasks import PrepareOptions
from maskwright.sections.data import build_sources
from maskwright.training.compute.parallel import Alone
from maskwright.training.compute.precision import Precision, choose_precision
from maskwright.training.held_out import evaluate


@dataclass(frozen=True)
class Result:
    side: str
    seconds: float
    seed: int
    loss: float
    accuracy: float
    pairs: float | None
    """Share of minimal pairs judged right."""
    tokens: int
    first_step_s: float
    wall_s: float
    """Of everything: reading, compiling, training, evaluating."""
    folder: str
    curve: list[tuple[float, int, float]]
    """Seconds, tokens, held-out loss: ours at the end of every epoch, the peer's after every fifth of its time."""


def read_budget(text: str) -> tuple[float, int]:
    seconds, _, seeds = text.partition("x")
    return float(seconds), int(seeds or 1)


def prepare_texts(arguments: argparse.Namespace) -> dict[str, str]:
    """Settings that both sides read the same shards with."""
    folders = {"train": arguments.out / "data-train", "validation": arguments.out / "data-validation"}
    for name, share in (("train", 0.0), ("validation", 1.0)):
        sources = build_sources([str(getattr(arguments, name))])
        if name == "train" and arguments.sentences:
            sources.append(sources[0].model_copy(update={"sentences": True}))
        options = PrepareOptions(validation_share=share)
        prepare(sources, open_tokenizer(arguments.tokenizer), folders[name], options, say=lambda text: None)
    return {"tokenizer.path": arguments.tokenizer, **{f"data.{name}": str(place) for name, place in folders.items()}}


def ask(folder: Path, config: mw.Config, pairs: list[MinimalPair], device: str) -> tuple[float, float, float | None]:
    """Loss and accuracy on held-out text, and minimal pairs, the same way for both sides."""
    model, tokenizer = load_model(str(folder))
    model.to(device)
    precision = Precision(choose_precision("auto", torch.device(device), find_hidden_size(model.encoder)).name)
    validation = load_data(config, None, lambda text: None).validation
    found = evaluate(model, validation.epoch(0), placed=Alone(model, precision))
    score = None
    if pairs:
        verdicts = judge_pairs(model, tokenizer, pairs)
        score = float(verdicts.points[verdicts.fits].mean())
    return found.loss, found.accuracy, score


def name_peer(seed: int, arguments: argparse.Namespace) -> str:
    kind = "compiled" if arguments.peer_compiled else "eager"
    return f"peer-{kind}-{arguments.peer_seconds:g}-{seed}"


def run_peer(seed: int, settings: dict[str, str], pairs: list[MinimalPair], arguments: argparse.Namespace) -> Result:
    begun = time.monotonic()
    precision = choose_precision("auto", torch.device(arguments.device), PeerSettings.hidden_size).name
    peer = PeerSettings(arguments.peer_seconds, seed, arguments.device, precision, arguments.peer_compiled)
    config = load_settings([arguments.recipe, *(f"{key}={value}" for key, value in settings.items())])
    folder = arguments.out / name_peer(seed, arguments)

    def measure() -> float:
        return ask(folder, config, [], arguments.device)[0]

    run = train_peer(Path(settings["data.train"]), folder, peer, measure)
    free_memory()
    loss, accuracy, score = ask(run.folder, config, pairs, arguments.device)
    curve = [*run.curve, (arguments.peer_seconds, run.tokens, loss)]
    facts = (run.tokens, run.first_step_s, time.monotonic() - begun, str(run.folder), curve)
    return Result("transformers", arguments.peer_seconds, seed, loss, accuracy, score, *facts)


def run_ours(
    seconds: float, seed: int, settings: dict[str, str], pairs: list[MinimalPair], arguments: argparse.Namespace
) -> Result:
    begun = time.monotonic()
    own = {
        "run.out": arguments.out,
        "run.name": f"ours-{seconds:g}-{seed}",
        "run.seed": seed,
        "training.max_seconds": seconds,
        "training.device": arguments.device,
        "training.checkpoint_every_steps": 10**6,
    }
    words = [f"{key}={value}" for key, value in {**settings, **own}.items()] + arguments.set
    config = load_settings([arguments.recipe, *words])
    run = mw.pretrain(config, overwrite=True, console=Console(quiet=True))
    curve = read_curve(run.folder.read_metrics())
    free_memory()
    loss, accuracy, score = ask(run.folder.model, config, pairs, arguments.device)
    figures, wall_s = run.figures, time.monotonic() - begun
    facts = (figures["tokens"], figures["first_step_s"], wall_s, str(run.folder.model), curve)
    return Result("maskwright", seconds, seed, loss, accuracy, score, *facts)


def recall(file: Path, run: Callable[[], Result]) -> Result:
    """The result of an earlier call with the same --out, or a new one."""
    if file.is_file():
        return Result(**json.loads(file.read_text()))
    free_memory()
    result = run()
    file.write_text(json.dumps(asdict(result)) + "\n")
    return result


def read_curve(lines: list[dict[str, float]]) -> list[tuple[float, int, float]]:
    curve, elapsed_s = [], 0.0
    for line in lines:
        elapsed_s = line.get("elapsed_s", elapsed_s)
        if "val_loss" in line:
            curve.append((elapsed_s, int(line["tokens"]), line["val_loss"]))
    return curve


def show(result: Result) -> None:
    pairs = "" if result.pairs is None else f"  pairs {result.pairs:.1%}"
    print(
        f"{result.side:<14}{result.seconds:6g} s  seed {result.seed}  loss {result.loss:.3f}"
        f"  accuracy {result.accuracy:.1%}{pairs}  {result.tokens / 1e6:8.1f}M tokens"
        f"  {result.tokens / result.seconds / 1e3:7,.0f}k/s  first step {result.first_step_s:.1f} s"
        f"  {result.wall_s:.0f} s in all",
    )
    points = [f"{loss:.3f} at {seconds:.0f} s, {tokens / 1e6:.1f}M" for seconds, tokens, loss in thin_out(result.curve)]
    print("  held-out loss " + "; ".join(points), flush=True)


def thin_out(curve: list[tuple[float, int, float]], num_points: int = 6) -> list[tuple[float, int, float]]:
    """Some of the points, from the first to the last."""
    places = np.unique(np.linspace(0, len(curve) - 1, min(num_points, len(curve))).round().astype(int))
    return [curve[place] for place in places.tolist()]


def summarise(results: list[Result]) -> str:
    seeds = f", {len(results)} seeds" if len(results) > 1 else ""
    text = f"{results[0].side} {results[0].seconds:g} s{seeds}: loss {show_mean([one.loss for one in results], '.3f')}"
    scores = [one.pairs for one in results if one.pairs is not None]
    return text + (f", pairs {show_mean(scores, '.1%')}" if scores else "")


def show_mean(values: list[float], form: str) -> str:
    mean = f"{statistics.fmean(values):{form}}"
    if len(values) == 1:
        return mean
    interval = compute_seed_interval(np.array(values))
    return f"{mean} ({interval.low:{form}} to {interval.high:{form}})"


def compute_ratio(peers: list[Result], ours: dict[float, list[Result]]) -> float | None:
    """How many times sooner ours is at the peer's loss; None where no budget reaches it."""
    goal = statistics.fmean(one.loss for one in peers)
    reached = [seconds for seconds, runs in ours.items() if statistics.fmean(one.loss for one in runs) <= goal]
    return peers[0].seconds / min(reached) if reached else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="modern_small", help="a recipe's name or file")
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--validation", type=Path, required=True)
    parser.add_argument("--tokenizer", required=True, help="a tokenizer's file or folder, for both sides")
    parser.add_argument("--sentences", action="store_true", help="learn from the texts' single sentences as well")
    parser.add_argument("--pairs", nargs="*", default=[], help="files of minimal pairs, such as BLiMP's")
    parser.add_argument("--most-pairs", type=int, default=100, help="of each file")
    parser.add_argument("--budgets", nargs="+", type=read_budget, default=[(20.0, 3), (240.0, 1)])
    parser.add_argument("--peer-seconds", type=float, default=240.0)
    parser.add_argument("--peer-seeds", type=int, default=1, help="0: ours alone")
    parser.add_argument("--peer-compiled", action="store_true", help="with torch.compile, which its trainer leaves out")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path("runs/learn"))
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--set", nargs="*", default=[], help="overrides of the recipe, key=value")
    arguments = parser.parse_args()
    settings = prepare_texts(arguments)
    pairs = [pair for file in arguments.pairs for pair in read_pairs([file])[: arguments.most_pairs]]
    results = []
    for seconds, num_seeds in sorted(arguments.budgets):
        for seed in range(num_seeds):
            file = arguments.out / f"ours-{seconds:g}-{seed}.json"
            results.append(recall(file, partial(run_ours, seconds, seed, settings, pairs, arguments)))
            show(results[-1])
    for seed in range(arguments.peer_seeds):
        file = arguments.out / f"{name_peer(seed, arguments)}.json"
        results.append(recall(file, partial(run_peer, seed, settings, pairs, arguments)))
        show(results[-1])
    peers = [one for one in results if one.side == "transformers"]
    ours = {s: [one for one in results if one.side == "maskwright" and one.seconds == s] for s, _ in arguments.budgets}
    ratio = compute_ratio(peers, ours) if peers else None
    if arguments.json:
        rows = [asdict(one) for one in results]
        arguments.json.write_text(json.dumps({"rows": rows, "ratio": ratio}, indent=2) + "\n")
    for group in [*ours.values(), *([peers] if peers else [])]:
        print(summarise(group))
    if peers:
        print("ratio none: no budget reaches the peer's loss" if ratio is None else f"ratio {ratio:.2f}x")


if __name__ == "__main__":
    main()
