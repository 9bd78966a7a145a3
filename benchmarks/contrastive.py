"""Training vectors by the contrastive loss beside sentence-transformers' trainer: the same encoder and batches.

Ours is `maskwright finetune retrieval`; the peer is benchmarks/peers/trainer_retrieval.py; each is its own process.
Steps per second are those of the second half of the training, after what is done once (kernels loaded, graphs
captured). Both truncate and drop out alike, and compute in the same precision, fp32 on a CPU and else bf16 unless it is
given; ours packs the texts of a batch, the peer pads them to the longest.

The encoder is a BERT with random weights, and pairs are words of the built-in corpus, with lengths as in MS MARCO
(queries of 6 words, passages of 56 on average), unless --model and --train name others (JSON lines with query and
positive).

    python benchmarks/contrastive.py
    python benchmarks/contrastive.py --precision bf16    # of a CPU with AMX
    python benchmarks/contrastive.py --device cuda
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from finetune import VOCAB_SIZE, build_encoder, measure_second_half, run

from maskwright.text.sources import read_python_documentation

PEER = Path(__file__).parent / "peers" / "trainer_retrieval.py"
NUM_PAIRS = {"cpu": 640, "cuda": 16_000}
QUERY_WORDS, PASSAGE_WORDS = (1.7, 0.4), (3.92, 0.45)
"""Mean and deviation of the logarithm of a text's words."""
MOST_WORDS = 300
LEAST_STEPS = 8
LOGGED_POINTS = 20


def write_pairs(file: Path, num_pairs: int, seed: int) -> Path:
    generator = random.Random(seed)
    words = [word for text in read_python_documentation() for word in text.split()]

    def draw(lengths: tuple[float, float]) -> str:
        size = min(max(2, round(generator.lognormvariate(*lengths))), MOST_WORDS)
        start = generator.randrange(len(words) - size)
        return " ".join(words[start : start + size])

    pairs = [{"query": draw(QUERY_WORDS), "positive": draw(PASSAGE_WORDS)} for _ in range(num_pairs)]
    file.write_text("".join(json.dumps(one) + "\n" for one in pairs), encoding="utf-8")
    return file


def measure_ours(folder: Path, model: str, train: Path, held_out: Path, arguments: argparse.Namespace) -> float:
    """Steps per second."""
    out = folder / "ours"
    words = ["-m", "maskwright", "finetune", "retrieval", "--model", model, "--train", train, "--validation", held_out]
    words += ["--batch-size", arguments.batch_size, "--max-length", arguments.max_length, "--epochs", 1, "--out", out]
    words += ["--learning-rate", arguments.learning_rate, f"training.device={arguments.device}"]
    words += [f"training.precision={arguments.precision}"]
    words += [f"training.log_every_steps={max(1, arguments.steps // LOGGED_POINTS)}", *arguments.settings]
    run([str(one) for one in words])
    return measure_second_half(out / "metrics.jsonl", arguments.steps)


def measure_peer(folder: Path, model: str, train: Path, arguments: argparse.Namespace) -> float:
    """Steps per second."""
    result = folder / "peer.json"
    words = [PEER, model, train, arguments.batch_size, arguments.max_length, arguments.device]
    run([str(one) for one in (*words, arguments.learning_rate, arguments.precision, result)])
    return float(json.loads(result.read_text(encoding="utf-8"))["steps_per_s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a folder that both read; unset: random weights")
    parser.add_argument("--variant", choices=list(VOCAB_SIZE), help="of random weights; tiny on a CPU, else base")
    parser.add_argument("--train", type=Path)
    parser.add_argument("--pairs", type=int, help="that are made; 640 on a CPU, else 16,000")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--max-length", type=int, default=256)
    parser.add_argument("--learning-rate", type=float, default=2e-5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=["fp32", "bf16"], help="of both; fp32 on a CPU, else bf16")
    parser.add_argument("--json", type=Path)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="of our run, such as training.compile=true")
    arguments = parser.parse_args()
    device = "cpu" if arguments.device == "cpu" else "cuda"
    arguments.precision = arguments.precision or ("fp32" if device == "cpu" else "bf16")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = arguments.model
        if model is None:
            model = str(folder / "encoder")
            build_encoder(folder / "encoder", arguments.variant or ("tiny" if device == "cpu" else "base"))
        train = arguments.train or write_pairs(folder / "train.jsonl", arguments.pairs or NUM_PAIRS[device], 0)
        num_pairs = len(train.read_text(encoding="utf-8").splitlines())
        arguments.steps = -(-num_pairs // arguments.batch_size)
        if arguments.steps < LEAST_STEPS:
            raise SystemExit(f"{num_pairs} pairs make {arguments.steps} steps; give {LEAST_STEPS} at least")
        held_out = write_pairs(folder / "held-out.jsonl", 4 * arguments.batch_size, 1)
        print(
            f"{num_pairs:,} pairs in batches of {arguments.batch_size}, up to {arguments.max_length} tokens, {device},"
            f" {arguments.precision}"
        )
        rates: dict[str, Any] = {}
        for side, measure in (
            ("maskwright", partial(measure_ours, folder, model, train, held_out)),
            ("sentence-transformers", partial(measure_peer, folder, model, train)),
        ):
            begun_s = time.monotonic()
            rate = rates[side] = measure(arguments)
            speed = f"{rate:>8.2f} steps/s{arguments.batch_size * rate:>10.1f} pairs/s{1e3 / rate:>9.1f} ms/step"
            print(f"{side:<22}{speed}; {time.monotonic() - begun_s:.0f} s in all", flush=True)
    ratio = rates["maskwright"] / rates["sentence-transformers"]
    if arguments.json:
        arguments.json.write_text(json.dumps({**rates, "ratio": ratio}, indent=2) + "\n", encoding="utf-8")
    print(f"ratio {ratio:.2f}x")


if __name__ == "__main__":
    main()
