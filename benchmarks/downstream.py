"""What pre-training is worth: the same encoder fine-tuned from its weights and from random ones, on real tasks.

Every task is a `maskwright finetune` command over several seeds, run from both folders (or from that of --against,
such as an encoder that another recipe trained), with each of the learning rates given; a side shows the one that suits
it best, since weights of different size want different steps. The table has the mean of the held-out metric, its
spread over the seeds, and a paired interval of the difference. DATA is a folder with glue/, ner/, qa/ and
stsbenchmark/ in their published layouts; what has no held-out file is split by a fixed share.

    python benchmarks/downstream.py --model runs/small/model --data tasks --seeds 3
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from maskwright.evaluation.statistics import compute_seed_interval
from maskwright.models.encoder import PackedEncoder
from maskwright.text.tokenizer.tokenizer import load_tokenizer

HELD_OUT_SHARE = 0.2
MUON_MARK = "+"
Results = dict[tuple[str, str, str], list[float]]
"""The metric of every seed, by task, side and learning rate."""


@dataclass(frozen=True)
class Task:
    kind: str
    train: str
    validation: str | None
    """None: a share of the training file."""
    metric: str
    options: Sequence[str] = ()
    split: Callable[[Path, Path], tuple[Path, Path]] | None = None


def split_lines(source: Path, folder: Path) -> tuple[Path, Path]:
    """The last share of a file's lines is held out; both keep the header."""
    header, *lines = source.read_text(encoding="utf-8").splitlines()
    cut = round(len(lines) * (1 - HELD_OUT_SHARE))
    return write_parts(folder, source.suffix, *("\n".join([header, *part]) for part in (lines[:cut], lines[cut:])))


def split_articles(source: Path, folder: Path) -> tuple[Path, Path]:
    """The last share of SQuAD's articles is held out."""
    content = json.loads(source.read_text(encoding="utf-8"))
    articles = content["data"]
    cut = round(len(articles) * (1 - HELD_OUT_SHARE))
    parts = (json.dumps({**content, "data": part}) for part in (articles[:cut], articles[cut:]))
    return write_parts(folder, source.suffix, *parts)


def write_parts(folder: Path, suffix: str, train: str, validation: str) -> tuple[Path, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / f"train{suffix}", folder / f"held-out{suffix}"
    for path, text in zip(paths, (train, validation), strict=True):
        path.write_text(text + "\n", encoding="utf-8")
    return paths


TASKS = {
    "SST-2": Task("classification", "glue/SST-2/train.tsv", "glue/SST-2/dev.tsv", "accuracy", ("--epochs", "1")),
    "CoLA": Task("classification", "glue/CoLA/train.tsv", "glue/CoLA/dev_in_domain.tsv", "matthews", ("--epochs", "5")),
    "MRPC": Task("pairs", "glue/MRPC/train.tsv", "glue/MRPC/dev.tsv", "accuracy", ("--epochs", "5")),
    "RTE": Task("pairs", "glue/RTE/train.tsv", None, "accuracy", ("--epochs", "5"), split_lines),
    "STS-B": Task(
        "regression", "stsbenchmark/sts-train.csv", "stsbenchmark/sts-dev.csv", "spearman", ("--epochs", "5")
    ),
    "WNUT-17": Task("ner", "ner/wnut17/train.conll", "ner/wnut17/dev.conll", "f1", ("--epochs", "8")),
    "NCBI disease": Task("ner", "ner/ncbi_disease/train.conll", "ner/ncbi_disease/dev.conll", "f1", ("--epochs", "5")),
    "SQuAD part": Task("qa", "qa/squad/dev-v1.1.part.json", None, "f1", ("--epochs", "8"), split_articles),
}


def build_random(model: Path, folder: Path) -> Path:
    """The same encoder with new weights, and its tokenizer."""
    torch.manual_seed(0)
    encoder = PackedEncoder.from_pretrained(model)
    encoder.reset_parameters()
    encoder.save_pretrained(folder)
    load_tokenizer(model).save(folder)
    return folder


def find_files(task: Task, data: Path, folder: Path) -> tuple[Path, Path]:
    if task.validation is not None:
        return data / task.train, data / task.validation
    assert task.split is not None
    return task.split(data / task.train, folder)


def list_optimizer_words(rate: str) -> list[str]:
    kind, _, value = rate.rpartition(MUON_MARK)
    if not kind:
        return ["--learning-rate", value]
    return ["--learning-rate", value, "optimizer.type=muon", f"optimizer.muon_learning_rate={kind}"]


def run_task(name: str, side: str, model: Path, rate: str, arguments: argparse.Namespace) -> list[float]:
    """The metric of every seed."""
    task = TASKS[name]
    slug = name.lower().replace(" ", "-")
    train, validation = find_files(task, arguments.data, arguments.out / "parts" / slug)
    out = arguments.out / side / f"{slug}-{rate}"
    words = ["finetune", task.kind, "--model", model, "--train", train, "--validation", validation, "--out", out]
    words += ["--seeds", arguments.seeds, "--batch-size", arguments.batch_size, *task.options]
    words += [*list_optimizer_words(rate), *arguments.options]
    if not (out / "seeds.json").is_file():
        command = [sys.executable, "-m", "maskwright", *map(str, words)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout[-1000:]}\n{done.stderr[-2000:]}")
    return [seed[task.metric] for seed in json.loads((out / "seeds.json").read_text())["seeds"]]


def show(results: Results, tasks: Sequence[str], sides: Sequence[str], rates: Sequence[str]) -> None:
    """A line for each task, with every side's best learning rate."""
    print(f"{'':<14}{'metric':<11}{'n seeds':>7}{sides[0]:>25}{sides[1]:>25}{'difference':>22}")
    for name in tasks:
        line = f"{name:<14}{TASKS[name].metric:<11}"
        best = [max(rates, key=lambda rate, side=side: statistics.fmean(results[name, side, rate])) for side in sides]
        runs = [results[name, side, rate] for side, rate in zip(sides, best, strict=True)]
        line += f"{len(runs[0]):>7}"
        for values, rate in zip(runs, best, strict=True):
            line += f"{f'{statistics.fmean(values):.3f} ± {statistics.stdev(values):.3f} ({rate})':>25}"
        differences = np.subtract(*runs)
        interval = compute_seed_interval(differences)
        print(line + f"{f'{differences.mean():+.3f} ± {(interval.high - interval.low) / 2:.3f}':>22}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--against", type=Path, help="another model folder; unset: the same encoder, random weights")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/downstream"))
    parser.add_argument("--tasks", nargs="+", default=["SST-2", "WNUT-17", "SQuAD part", "STS-B"], choices=list(TASKS))
    parser.add_argument("--seeds", type=int, default=3, choices=range(2, 11), metavar="2..10")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument(
        "--learning-rates",
        nargs="+",
        default=["1e-4", "5e-4", "1e-3"],
        help="a side shows its best; 0.01+1e-3 is Muon's and its AdamW's",
    )
    parser.add_argument("--jobs", type=int, default=1, help="fine-tunings at a time")
    parser.add_argument("--threads", type=int, default=2, help="of each")
    parser.add_argument("--json", type=Path)
    parser.add_argument("options", nargs="*", help="further words for finetune, after --")
    arguments = parser.parse_args()
    other = arguments.against or build_random(arguments.model, arguments.out / "random")
    sides = {"model": arguments.model, "against" if arguments.against else "random": other}
    work = [(name, side, rate) for name in arguments.tasks for side in sides for rate in arguments.learning_rates]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        futures = {key: pool.submit(run_task, key[0], key[1], sides[key[1]], key[2], arguments) for key in work}
        results = {key: future.result() for key, future in futures.items()}
    show(results, arguments.tasks, list(sides), arguments.learning_rates)
    if arguments.json:
        record = {f"{name}, {side}, {rate}": values for (name, side, rate), values in results.items()}
        arguments.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
