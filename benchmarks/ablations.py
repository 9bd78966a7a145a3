"""One setting of a recipe changed at a time, all for the same number of tokens, over several seeds.

Every variant is trained from the same seeds as the recipe itself, so differences are paired by seed: the table has the
mean held-out loss, its deviation between seeds, and the difference to the recipe with a 95% interval and the p-value
of a paired t-test. All masked models answer the same questions, fixed masks on 15% of single tokens, whatever they
were trained on; for replaced-token detection the generator does. A causal model answers next tokens and another
vocabulary other tokens: their losses do not compare, the share of minimal pairs (--pairs) does. Vocabularies are
compared by the nats a word that held-out sentences need (--sentences-scored): their pseudo-log-likelihood, where what
follows a token in its word is masked too.

    python benchmarks/ablations.py --tokens 1200000 --seeds 3 --jobs 2
    python benchmarks/ablations.py --recipe modern_small --train train.jsonl.zst --validation valid.jsonl.zst \
        --tokenizer bert-base-uncased --tokens 8000000 --batch-tokens 16384 --seeds 3 --jobs 6 --topics optimizer batch
    python benchmarks/ablations.py --train train.jsonl.zst --validation valid.jsonl.zst --tokenizer tok \
        --tokens 800000 --seeds 3 --jobs 2 --topics vocabulary --sentences-scored 300
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ablation_topics import OTHER_QUESTIONS, OTHER_VOCABULARIES, RECIPE, TOPICS
from learn import prepare_texts
from rich.console import Console
from scipy.stats import ttest_rel
from train_step import free_memory

import maskwright as mw
from maskwright.cli.train import load_settings
from maskwright.evaluation.likelihood import score_texts
from maskwright.evaluation.minimal_pairs import judge_pairs, read_pairs
from maskwright.evaluation.statistics import compute_seed_interval
from maskwright.runs.model import load_model
from maskwright.sections.data import build_sources
from maskwright.text.sources import read_source
from maskwright.training.compute.device import choose_device

Figures = dict[str, float]
MOST_CHARACTERS = 60
"""Of a sentence that is scored, so that it fits a row of 64 tokens in any vocabulary."""


def choose_variants(topics: list[str], wanted: list[str]) -> dict[str, list[str]]:
    offered = {name: words for topic in topics for name, words in TOPICS[topic].items()}
    if unknown := set(wanted) - set(offered):
        raise SystemExit(f"no variants {sorted(unknown)} in {topics}; there are {sorted(offered)}")
    return {name: words for name, words in offered.items() if not wanted or name in wanted}


def share_cores(jobs: int) -> None:
    """Processes that each take all cores wait for one another: two of them on two cores take several times as long."""
    torch.set_num_threads(max(1, torch.get_num_threads() // jobs))


def measure(arguments: argparse.Namespace, data: dict[str, str], words: list[str], seed: int) -> Figures:
    free_memory()
    with tempfile.TemporaryDirectory() as folder:
        shared = {
            **data,
            "run.name": "ablation",
            "run.out": folder,
            "run.seed": seed,
            "training.max_tokens": arguments.tokens,
            "training.max_seconds": "null",
            "training.epochs": 1000,
            "training.device": arguments.device,
            "training.checkpoint_every_steps": 10**6,
        }
        if arguments.batch_tokens:
            shared["training.batch_tokens"] = arguments.batch_tokens
        if any(word.startswith("tokenizer.") for word in words):  # shards hold the tokens of one tokenizer
            shared |= {"data.train": arguments.train, "data.validation": arguments.validation}
        settings = [f"{key}={value}" for key, value in shared.items()]
        config = load_settings([arguments.recipe, *settings, *arguments.set, *words])
        run = mw.pretrain(config, console=Console(quiet=True))
        loss = run.figures.get("generator_loss", run.figures.get("mlm_loss", run.figures["loss"]))
        figures = {"loss": loss, "accuracy": run.figures["accuracy"]}
        if arguments.pairs:
            figures["pairs"] = judge(run.folder.model, arguments)
        if arguments.sentences_scored:
            figures["nats_per_word"] = score_sentences(run.folder.model, arguments)
    return figures


def score_sentences(folder: Path, arguments: argparse.Namespace) -> float:
    source = build_sources(arguments.validation)[0].model_copy(update={"sentences": True})
    short = (text for text in read_source(source) if len(text) <= MOST_CHARACTERS)
    sentences = list(islice(short, arguments.sentences_scored))
    model, tokenizer = load_model(str(folder))
    scores = score_texts(model.to(choose_device(arguments.device)), tokenizer, sentences, word_l2r=True)
    if not scores.fits.all():
        raise SystemExit("a sentence is too long for the model, so that not all models would be asked the same")
    return float(-scores.log_likelihoods.sum() / sum(len(text.split()) for text in sentences))


def judge(folder: Path, arguments: argparse.Namespace) -> float:
    model, tokenizer = load_model(str(folder))
    pairs = [pair for file in arguments.pairs for pair in read_pairs([file])[: arguments.most_pairs]]
    verdicts = judge_pairs(model.to(choose_device(arguments.device)), tokenizer, pairs)
    return float(verdicts.points[verdicts.fits].mean())


def compare(variant: list[Figures], recipe: list[Figures], measure: str) -> dict[str, float]:
    """By what the same seeds reached."""
    losses, base = (np.array([one[measure] for one in runs]) for runs in (variant, recipe))
    interval = compute_seed_interval(losses - base)
    p_value = float(ttest_rel(losses, base).pvalue) if len(losses) > 1 else float("nan")
    return {
        "difference": float((losses - base).mean()),
        "low": interval.low,
        "high": interval.high,
        "p_value": p_value,
    }


def describe(name: str, runs: list[Figures], recipe: list[Figures]) -> str:
    losses = np.array([one["loss"] for one in runs])
    spread = losses.std(ddof=1) if len(losses) > 1 else float("nan")
    text = f"{name:<44}{losses.mean():7.3f} ± {spread:.3f}  {np.mean([one['accuracy'] for one in runs]):6.1%}"
    if "pairs" in runs[0]:
        text += f"  {np.mean([one['pairs'] for one in runs]):6.1%}"
    if "nats_per_word" in runs[0]:
        text += f"  {np.mean([one['nats_per_word'] for one in runs]):6.3f} a word"
    measure = "nats_per_word" if name in OTHER_VOCABULARIES else "loss"
    if name in (RECIPE, *OTHER_QUESTIONS) or measure not in runs[0]:
        return text
    found = compare(runs, recipe, measure)
    return f"{text}  {found['difference']:+.3f} ({found['low']:+.3f} to {found['high']:+.3f}), p {found['p_value']:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="quickstart", help="a recipe's name or file")
    parser.add_argument("--train", help="texts; unset: the recipe's")
    parser.add_argument("--validation", help="held-out texts, with --train")
    parser.add_argument("--tokenizer", help="a tokenizer's file or folder, with --train")
    parser.add_argument("--sentences", action="store_true", help="learn from the texts' single sentences as well")
    parser.add_argument("--tokens", type=int, default=300_000, help="tokens of each run, padding included")
    parser.add_argument("--batch-tokens", type=int, help="of the recipe and all variants that do not set them")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, each in a process of its own")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--topics", nargs="+", choices=list(TOPICS), default=["masking", "objective"])
    parser.add_argument("--variants", nargs="+", default=[], help="of the topics only these, by name")
    parser.add_argument("--pairs", nargs="*", default=[], help="files of minimal pairs, such as BLiMP's")
    parser.add_argument("--most-pairs", type=int, default=40, help="of each file")
    parser.add_argument("--sentences-scored", type=int, default=0, help="of the held-out texts, in nats a word")
    parser.add_argument("--set", nargs="*", default=[], help="overrides of the recipe and of all variants, key=value")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    if arguments.sentences_scored and not arguments.validation:
        parser.error("--sentences-scored needs --validation")
    if arguments.train and not (arguments.validation and arguments.tokenizer):
        parser.error("--train needs --validation and --tokenizer")
    variants = {RECIPE: []} | choose_variants(arguments.topics, arguments.variants)
    print(f"{arguments.recipe}, {arguments.tokens:,} tokens, {arguments.seeds} seed(s)")
    context = multiprocessing.get_context("spawn")
    results: dict[str, list[Figures]] = {}
    processes = ProcessPoolExecutor(arguments.jobs, context, share_cores, (arguments.jobs,))
    with tempfile.TemporaryDirectory() as folder, processes as pool:
        arguments.out = Path(folder)
        data: dict[str, Any] = prepare_texts(arguments) if arguments.train else {}
        started = {
            name: [pool.submit(measure, arguments, data, words, seed) for seed in range(arguments.seeds)]
            for name, words in variants.items()
        }
        for name, futures in started.items():
            results[name] = [future.result() for future in futures]
            print(describe(name, results[name], results[RECIPE]), flush=True)
            if arguments.json:
                arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
