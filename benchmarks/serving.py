"""Embeddings over HTTP beside infinity-emb and beside sentence-transformers behind plain FastAPI, on loopback.

Every request asks for the vector of one text; texts are sentences of the built-in corpus, or the lines of --texts.
All servers read the same model: random weights of --variant, or --model. Each is measured alone: first with clients
that ask again as soon as they are answered, then at rising rates of requests that come at random times, until the
slowest hundredth is slower than --p99-ms, twice in a row. The headline is the highest rate within that time, ours over
the better peer's.

With --bulk N,M requests have N texts, then M, answered as numbers and as base64, and come from --generators processes.
All answers of --processes servers of ours count, each on a port of its own as behind a load balancer.

    python benchmarks/serving.py --infinity path/to/venv
    python benchmarks/serving.py --device cuda --variant base --bulk 1,32,256 --processes 1,4 --seconds 3
    python benchmarks/serving.py --soak 30
    python benchmarks/serving.py --soak 5 --share 1.5
    python benchmarks/serving.py --faults
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from serving_bulk import measure_bulk
from serving_faults import run_faults
from serving_load import Client, Load, Outcome, write_bodies
from serving_sides import Server, Side, list_sides, running
from serving_soak import soak

import maskwright as mw
from maskwright.text.sources import read_python_documentation

WARM_UP_S = 3.0
NUM_CLIENTS = (1, 4, 16, 64)
FIRST_SHARE = 0.2
STEP = 1.2
"""Rates begin at a share of what closed loops reached, and rise by this factor."""


def read_sentences(path: Path | None, count: int) -> list[str]:
    """Sentences of the built-in corpus, or lines of a file, in a random order that is always the same."""
    if path is None:
        documents = read_python_documentation()
        found = [part for one in documents for part in re.split(r"(?<=[.!?])\s+", one) if 20 <= len(part) <= 400]
    else:
        found = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    order = np.random.default_rng(0).permutation(len(found))
    return [" ".join(found[number].split()) for number in order[:count]]


def build_model(folder: Path, arguments: argparse.Namespace) -> Path:
    if arguments.model is not None:
        return Path(arguments.model)
    tokenizer = mw.train_tokenizer(read_python_documentation(), vocab_size=8_000)
    encoder = mw.BERT.from_variant(arguments.variant, vocab_size=tokenizer.vocab_size, initializer_range=0.1)
    model = mw.MaskedLanguageModel(
        encoder,
        tokenizer.vocab_size,
        mask_token_id=tokenizer.mask_token_id,
        special_token_ids=tokenizer.all_special_ids,
        layer_norm_eps=encoder.norm_eps,
    )
    model.save_pretrained(folder, tokenizer)
    if arguments.bulk:  # no peer reads it
        return folder
    mw.export(str(folder), "sentence-transformers", out=folder.parent / "exported")
    return folder.parent / "exported"


def make_load(server: Server, texts: list[str], model: str) -> tuple[Client, Load]:
    client = Client(server.port, server.side.path)
    return client, Load(client, write_bodies(texts, model if server.side.names_model else None))


async def measure(server: Server, texts: list[str], arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    client, load = make_load(server, texts, str(folder))
    await load.run_closed(8, WARM_UP_S)
    closed = []
    for num_clients in NUM_CLIENTS:
        cpu_s = server.read_cpu_s()
        outcome = await load.run_closed(num_clients, arguments.seconds)
        cpu_ms = 1e3 * (server.read_cpu_s() - cpu_s) / max(len(outcome.seconds), 1)
        closed.append(describe(outcome, clients=num_clients, cpu_ms=cpu_ms))
        print(f"  {cpu_ms:7.2f} ms of a core a request", end="")
        show(f"  {num_clients:4} clients", outcome)
    capacity = max(row["rate"] for row in closed)
    rates, rate, best = [], capacity * FIRST_SHARE, 0.0
    while rate <= 1.5 * capacity:
        for attempt in range(2):
            outcome = await load.run_open(rate, arguments.seconds, seed=attempt)
            rates.append(describe(outcome, asked=rate))
            show(f"  {rate:6.0f} asked/s", outcome)
            is_met = outcome.percentile_ms(99) <= arguments.p99_ms and not outcome.num_errors
            if is_met:
                break
        if not is_met:
            break
        best = rate
        rate *= STEP
    client.close()
    return {"closed": closed, "open": rates, "capacity": capacity, "best_rate": best}


def describe(outcome: Outcome, **asked: float) -> dict[str, Any]:
    figures = {"rate": outcome.rate, "p50_ms": outcome.percentile_ms(50), "p99_ms": outcome.percentile_ms(99)}
    return {**asked, **figures, "errors": outcome.errors}


def show(label: str, outcome: Outcome) -> None:
    wrong = ", ".join(f"{count} x {name}" for name, count in outcome.errors.items()) or "no errors"
    times = f"p50 {outcome.percentile_ms(50):7.1f} ms, p99 {outcome.percentile_ms(99):7.1f} ms"
    print(f"{label}: {outcome.rate:7.1f} requests/s, {times}, {wrong}", flush=True)


def compare(sides: list[Side], folder: Path, texts: list[str], arguments: argparse.Namespace) -> dict[str, Any]:
    figures = {}
    for side in sides:
        print(side.name, flush=True)
        with running(side, Path(arguments.logs) / f"{side.name.split()[0]}.log") as server:
            figures[side.name] = asyncio.run(measure(server, texts, arguments, folder))
    ours, *peers = figures.values()
    for name, one in figures.items():
        print(
            f"{name}: {one['best_rate']:.1f} requests/s within {arguments.p99_ms:g} ms, {one['capacity']:.1f} at most"
        )
    return {"sides": figures, "ratio": ours["best_rate"] / max(map(bound_rate, peers))} if peers else {"sides": figures}


def bound_rate(figures: dict[str, Any]) -> float:
    """The best rate; of a side that was too slow at every one the lowest, which is more than it can do."""
    return float(figures["best_rate"] or figures["open"][0]["asked"])


def read_counts(words: str) -> list[int]:
    counts = [int(word) for word in words.split(",")]
    if min(counts) < 1:
        raise ValueError
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a sentence-transformers folder; default: random weights of --variant")
    parser.add_argument("--variant", default="tiny", choices=list(mw.BERT.variants))
    parser.add_argument("--texts", type=Path, help="a file with a text to a line; default: the built-in corpus")
    parser.add_argument("--num-texts", type=int, default=2_000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--infinity", type=Path, help="an environment with infinity-emb[server,torch]")
    parser.add_argument("--peer-python", help="python with sentence-transformers, fastapi, uvicorn; default: this one")
    parser.add_argument(
        "--peer-dtype", default="float32", choices=["float32", "bfloat16"], help="that peers compute in"
    )
    parser.add_argument("--only", help="sides whose name has this word")
    parser.add_argument("--serve", default="", help="more words for maskwright serve")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load")
    parser.add_argument("--p99-ms", type=float, default=250.0)
    parser.add_argument("--bulk", type=read_counts, metavar="TEXTS", help="of each request; ours, as fast as it can")
    parser.add_argument("--processes", type=read_counts, default=[1], help="servers of ours, with --bulk")
    parser.add_argument("--generators", type=int, default=6, help="processes that ask, with --bulk")
    parser.add_argument("--soak", type=float, metavar="MINUTES")
    parser.add_argument("--share", type=float, default=0.8, help="of what closed loops reach, for --soak")
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        arguments.logs = temporary
        folder = build_model(Path(temporary) / "model", arguments)
        texts = read_sentences(arguments.texts, arguments.num_texts)
        words = np.asarray([len(text.split()) for text in texts])
        print(f"{len(texts)} texts of {words.mean():.0f} words ({words.min()} to {words.max()}), {arguments.device}")
        peer_python = arguments.peer_python or sys.executable
        sides = list_sides(
            folder, arguments.device, arguments.infinity, peer_python, arguments.serve.split(), arguments.peer_dtype
        )
        if arguments.faults:
            results = run_faults(sides[0], texts, Path(temporary))
        elif arguments.bulk:
            results = measure_bulk(sides[0], texts, arguments)
        elif arguments.soak:
            with running(sides[0], Path(temporary) / "soak.log") as server:
                results = asyncio.run(soak(server, texts[:500], arguments.soak, arguments.share))
        else:
            chosen = [side for side in sides if arguments.only is None or arguments.only in side.name]
            results = compare(chosen, folder, texts, arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")
    if "ratio" in results:
        print(f"ratio {results['ratio']:.2f}x")


if __name__ == "__main__":
    main()
