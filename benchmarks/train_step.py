"""One training step of ours beside one of its peers: same shape, same texts, same precision, same device.

The first peer is transformers' `BertForMaskedLM` (or `ModernBertForMaskedLM`) with its MLM collator, padded batches,
fused AdamW and clipping, as `transformers.Trainer` runs it, eager and compiled. The second, with --keras, is
keras-hub's `BertMaskedLM` on JAX: padded too, its head on masked slots, compiled; on CPUs, in fp32. Texts are random
tokens of log-normal length (mean about 0.35 of the maximum), as sentences have, or with --dense all of full length.
Batches are made ahead on all sides, so that what is timed is the step: copying, masking (ours does it there), forward,
backward, clipping, update.

Model FLOP are those that the method needs: 6 for each weight of a matrix and token, and attention over the row; ours
and keras-hub run the vocabulary's projection on masked tokens alone. The peak is that of a large product in the same
precision, measured in the same run. With fp8, which transformers does not have, the peer and the peak are bf16's.
`ratio` is ours against the fastest row of a peer with the same dropout, in real tokens. Before that, transformers and
ours take the same steps from the same weights, and their losses are compared; keras-hub must have as many weights and
begin with the loss of a guess. It runs in an environment of its own:

    python -m venv keras && keras/bin/pip install keras-hub "jax[cpu]"
    python benchmarks/train_step.py --variant tiny --length 128 --keras keras/bin/python

    python benchmarks/train_step.py --variant tiny --length 128
    python benchmarks/train_step.py --device cuda --variant base --rows 512 --precision bf16 --dense
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from pathlib import Path
from typing import Any

import torch
from keras_side import NAME as KERAS
from keras_side import measure_keras, read_versions
from step_sides import FAMILIES, RATIO, Ours, Peer, build_peer_model, compare_losses, make_documents

from maskwright.models.modernbert import ModernBertConfig
from maskwright.training.compute.device import keeping_freed_memory

TOLERANCE = {"fp32": 1e-3, "tf32": 5e-3, "bf16": 2e-2, "fp8": 2e-2}
"""How far the two losses of a step may be apart, as a share of the loss."""
NUM_COMPARED = 5
NUM_WARM_UP = 3
MODES = ("eager", "compiled")
SIDES = {"transformers": Peer, "maskwright": Ours}


def measure_all(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    modes = arguments.modes or (["eager", "compiled"] if arguments.device.startswith("cuda") else ["eager"])
    rows = []
    for dropout in arguments.dropout:
        rows += [measure("transformers", mode == "compiled", dropout, arguments) for mode in modes]
        if arguments.keras:
            rows.append(measure_second_peer(dropout, arguments))
        our_modes = arguments.our_modes or modes
        rows += [measure("maskwright", mode == "compiled", dropout, arguments) for mode in our_modes]
    return rows


def measure_second_peer(dropout: float, arguments: argparse.Namespace) -> dict[str, Any]:
    reference = build_peer_model(arguments, dropout)
    figures = measure_keras(arguments, dropout, NUM_WARM_UP, reference)
    tflops = count_flops(reference, arguments, head_share=RATIO) * figures["tokens_per_s"] / 1e12
    return {"side": KERAS, "compiled": True, "dropout": dropout, **figures, "model_tflops": tflops}


def measure(name: str, is_compiled: bool, dropout: float, arguments: argparse.Namespace) -> dict[str, Any]:
    free_memory()
    if name != "maskwright":
        return time_steps(name, is_compiled, dropout, arguments)
    with keeping_freed_memory(torch.device(arguments.device)):  # as the trainer does
        return time_steps(name, is_compiled, dropout, arguments)


def time_steps(name: str, is_compiled: bool, dropout: float, arguments: argparse.Namespace) -> dict[str, Any]:
    side = SIDES[name](arguments, is_compiled, dropout)
    batches = side.make_batches(arguments.texts, NUM_WARM_UP + arguments.steps)
    begun = time.perf_counter()
    side.step(batches[0])
    synchronize(arguments.device)
    first_s = time.perf_counter() - begun
    for batch in batches[1:NUM_WARM_UP]:
        side.step(batch)
    synchronize(arguments.device)
    begun = time.perf_counter()
    for batch in batches[NUM_WARM_UP:]:
        side.step(batch)
    synchronize(arguments.device)
    seconds = time.perf_counter() - begun
    counts = [side.count_tokens(batch) for batch in batches[NUM_WARM_UP:]]
    num_tokens, num_real = (sum(one) for one in zip(*counts, strict=True))
    flops = count_flops(side.model, arguments, head_share=1.0 if name == "transformers" else RATIO)
    figures = {
        "side": name,
        "compiled": is_compiled,
        "dropout": dropout,
        "tokens_per_s": num_tokens / seconds,
        "real_tokens_per_s": num_real / seconds,
        "model_tflops": flops * num_tokens / seconds / 1e12,
        "step_ms": 1e3 * seconds / arguments.steps,
        "first_step_s": first_s,
    }
    if arguments.device.startswith("cuda"):
        figures["memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return figures


def count_flops(model: torch.nn.Module, arguments: argparse.Namespace, head_share: float) -> float:
    """Of a token, forward and backward."""
    shape = FAMILIES[arguments.family].build_config(arguments.variant)
    table = arguments.vocab_size * shape.hidden_size
    matrices = sum(param.numel() for param in model.parameters() if param.ndim == 2)
    tables = table + (shape.hidden_size * (arguments.length + 2) if arguments.family == "bert" else 0)
    head = table + shape.hidden_size**2
    layers = matrices - tables - shape.hidden_size**2
    return 6 * (layers + head_share * head) + 12 * count_seen(shape, arguments.length) * shape.hidden_size


def count_seen(shape: Any, length: int) -> int:
    """Tokens that a token sees, summed over the layers; the local ones of ModernBERT see a window."""
    if not isinstance(shape, ModernBertConfig):
        return int(shape.num_hidden_layers) * length
    window = min(length, shape.local_attention + 1)
    return sum(length if shape.is_global(layer) else window for layer in range(shape.num_hidden_layers))


def measure_peak(device: str, precision: str) -> float:
    """TFLOP/s of a large matrix product."""
    size, dtype = (8192, torch.float32) if device.startswith("cuda") else (1024, torch.float32)
    if precision in ("bf16", "fp8"):
        dtype = torch.bfloat16
    left, right = torch.randn(2, size, size, device=device, dtype=dtype)
    best = float("inf")
    for _ in range(8):
        synchronize(device)
        begun = time.perf_counter()
        left @ right
        synchronize(device)
        best = min(best, time.perf_counter() - begun)
    return 2 * size**3 / best / 1e12


def free_memory() -> None:
    gc.collect()
    torch.compiler.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def check_losses(arguments: argparse.Namespace) -> float:
    """The largest difference of the losses of both sides, as a share; too large a one ends the run."""
    pairs = compare_losses(arguments, arguments.texts, NUM_COMPARED)
    worst = max(abs(theirs - ours) / theirs for theirs, ours in pairs)
    theirs, ours = pairs[-1]
    print(
        f"loss after {NUM_COMPARED} steps from the same weights: transformers {theirs:.4f}, maskwright {ours:.4f}; "
        f"largest difference {worst:.1e} (at most {TOLERANCE[arguments.precision]:.0e})"
    )
    if worst > TOLERANCE[arguments.precision]:
        raise SystemExit("the two sides do not compute the same loss")
    return worst


def print_table(rows: list[dict[str, Any]], peak: float) -> None:
    print(f"{'':<38}{'k tokens/s':>11}{'real':>9}{'TFLOP/s':>9}{'of peak':>9}{'ms':>8}{'GiB':>7}{'first step s':>14}")
    for row in rows:
        kind = "compiled" if row["compiled"] else "eager"
        label = f"{row['side']}, {kind}, dropout {row['dropout']:g}"
        memory = f"{row['memory_gib']:7.1f}" if "memory_gib" in row else f"{'':7}"
        print(
            f"{label:<38}{row['tokens_per_s'] / 1e3:11,.2f}{row['real_tokens_per_s'] / 1e3:9,.2f}"
            f"{row['model_tflops']:9.3g}{row['model_tflops'] / peak:9.0%}{row['step_ms']:8,.0f}{memory}"
            f"{row['first_step_s']:14.1f}"
        )


def compare(rows: list[dict[str, Any]], dropout: float) -> dict[str, float]:
    """Ours against the fastest of each peer, with the same dropout; `speed` and `memory` are over transformers."""
    alike = [row for row in rows if row["dropout"] == dropout]
    best = {row["side"]: row for row in sorted(alike, key=lambda row: row["real_tokens_per_s"])}
    ours, theirs = best["maskwright"], best["transformers"]
    ratios = {"speed": ours["real_tokens_per_s"] / theirs["real_tokens_per_s"]}
    if KERAS in best:
        ratios["speed_over_keras_hub"] = ours["real_tokens_per_s"] / best[KERAS]["real_tokens_per_s"]
    if "memory_gib" in ours:
        ratios["memory"] = ours["memory_gib"] / theirs["memory_gib"]
    return ratios


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", default="bert", choices=list(FAMILIES))
    parser.add_argument("--variant", default="tiny", choices=["tiny", "small", "base", "large"])
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--vocab-size", type=int, default=30522)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--precision", default="fp32", choices=list(TOLERANCE))
    parser.add_argument("--dropout", type=float, nargs="+", default=[0.1], help="one or several rates")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--dense", action="store_true", help="all texts of full length")
    kinds.add_argument("--padded", action="store_true", help="texts of log-normal length, as sentences have (default)")
    parser.add_argument("--modes", nargs="+", choices=MODES, help="unset: both on GPUs, eager on CPUs")
    parser.add_argument("--our-modes", nargs="+", choices=MODES, help="unset: those of the peer")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--keras", type=Path, metavar="PYTHON", help="of an environment with keras-hub and jax")
    parser.add_argument("--json", type=Path, help="write the figures here")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    versions = [read_versions(arguments)] if arguments.keras else []
    torch.manual_seed(0)
    arguments.texts = make_documents(8 * arguments.rows, arguments.length, arguments.vocab_size, arguments.dense)
    texts = "dense" if arguments.dense else "variable length"
    precision = "ours fp8, the peer bf16" if arguments.precision == "fp8" else arguments.precision
    title = (
        f"{arguments.family} {arguments.variant}, {arguments.rows} rows of {arguments.length}, {texts},"
        f" {arguments.device}, {precision}"
    )
    print(title)
    difference = check_losses(arguments)
    peak = measure_peak(arguments.device, arguments.precision)
    rows = measure_all(arguments)
    print_table(rows, peak)
    ratios = {dropout: compare(rows, dropout) for dropout in arguments.dropout}
    if arguments.json:
        machine = ", ".join([name_machine(arguments.device), *versions])
        facts = {"title": title, "machine": machine, "peak_tflops": peak}
        results = {**facts, "loss_difference": difference, "rows": rows, "ratios": ratios}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")
    for dropout, ratio in ratios.items():
        keras = f", {ratio['speed_over_keras_hub']:.2f}x {KERAS}" if "speed_over_keras_hub" in ratio else ""
        memory = f", memory {ratio['memory']:.2f}x" if "memory" in ratio else ""
        print(f"ratio {ratio['speed']:.2f}x transformers{keras} (dropout {dropout:g}{memory})")


def name_machine(device: str) -> str:
    import platform

    if device.startswith("cuda"):
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    return f"{torch.get_num_threads()} threads, {platform.machine()}, torch {torch.__version__}"


if __name__ == "__main__":
    main()
