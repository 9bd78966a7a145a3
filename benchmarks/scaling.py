"""A simulation: step time and efficiency of DDP at many GPUs, from a step measured on one and figures of networks.

Nothing here ran on several GPUs. The model: the backward pass makes gradients ready in buckets; a bucket is all-reduced
as soon as it is ready and the one before is done, beside the rest of the backward pass; the optimizer waits for the
last one. An all-reduce is a ring inside each machine around a ring between machines, each GPU with its share of the
bytes; a ring costs a latency for each of its hops and a time for each byte. Every step waits for the slowest GPU.

The same model is checked here, where it can be: in 1, 2 and 4 processes over gloo, whose latency and bandwidth are
measured with all-reduces alone, it predicts the forward and backward pass with the exchange, which is then measured. On
CPUs the exchange takes the cores that compute, so that it hides nothing there.

    python benchmarks/scaling.py
    python benchmarks/scaling.py --check-processes 2 --step-ms 11 --tokens 8192
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from processes import start
from step_sides import Ours, make_documents

from maskwright.training.distributed.world import leave_world

MB = 1e6
SIZES = (1 << 12, 1 << 18, 1 << 22, 1 << 24, 1 << 26)
"""Bytes of the all-reduces that gloo is measured with."""
BUCKET_BYTES = 25 << 20
"""Of DDP, its default."""


@dataclass(frozen=True)
class Link:
    latency_s: float
    """Of one hop."""
    bytes_per_s: float
    """Of one GPU, in one direction."""

    def ring_s(self, num_bytes: float, size: int) -> float:
        """A ring all-reduce (Patarasuk and Yuan 2009): 2 (n - 1) hops, each with an n-th of the bytes."""
        return 2 * (size - 1) * (self.latency_s + num_bytes / size / self.bytes_per_s)


@dataclass(frozen=True)
class Network:
    inside: Link
    between: Link
    per_machine: int

    def all_reduce_s(self, num_bytes: float, num_gpus: int) -> float:
        """Reduced inside the machines, then between them, where each GPU has its share, then gathered inside."""
        inside = min(num_gpus, self.per_machine)
        machines = math.ceil(num_gpus / self.per_machine)
        return self.inside.ring_s(num_bytes, inside) + self.between.ring_s(num_bytes / inside, machines)


EFFICIENCY = 0.8
"""Of the line rate, an assumption; collectives of large messages come near it."""
NVLINK = Link(3e-6, EFFICIENCY * 450e9)
"""NVLink 4: 900 GB/s in both directions together (NVIDIA's data sheet of the H200)."""
NETWORKS = {
    "InfiniBand NDR, a 400 Gbit/s card for each GPU": Network(NVLINK, Link(5e-6, EFFICIENCY * 50e9), 8),
    "Ethernet, 100 Gbit/s for each machine of 8": Network(NVLINK, Link(30e-6, EFFICIENCY * 12.5e9 / 8), 8),
}
"""Latencies are assumptions: microseconds for a hop with RDMA, some tens through a kernel's TCP."""


@dataclass(frozen=True)
class Step:
    """A step of one GPU alone."""

    seconds: float
    backward_share: float
    optimizer_share: float
    buckets: tuple[float, ...]
    """Bytes of gradients, in the order in which the backward pass has them ready; the last one at its end."""


def cut_buckets(num_bytes: float, last_bytes: float) -> tuple[float, ...]:
    """DDP's buckets: full ones, and the last of the embeddings, whose gradient is complete at the very end."""
    rest = max(0.0, num_bytes - last_bytes)
    num_buckets = math.ceil(rest / BUCKET_BYTES)
    last = [num_bytes - rest] if rest < num_bytes else []
    return (*(rest / num_buckets for _ in range(num_buckets)), *last)


def predict_step_s(step: Step, network: Network, num_gpus: int, *, jitter: float = 0.0, hides: bool = True) -> float:
    """The step of each of `num_gpus`; without `hides` nothing is exchanged beside the computation."""
    backward_s = step.seconds * step.backward_share
    backward_end = step.seconds * (1 - step.optimizer_share)
    total = sum(step.buckets)
    is_done, so_far = 0.0, 0.0
    for num_bytes in step.buckets:
        so_far += num_bytes
        ready = backward_end - backward_s * (1 - so_far / total) if hides else backward_end
        is_done = max(is_done, ready) + (network.all_reduce_s(num_bytes, num_gpus) if num_gpus > 1 else 0.0)
    # the largest of n normal deviations, for many n (Cramer 1946, section 28.6)
    slowest = jitter * step.seconds * math.sqrt(2 * math.log(num_gpus))
    return max(backward_end, is_done) + step.seconds * step.optimizer_share + slowest


def fit_link(seconds: Sequence[float], sizes: Sequence[int], num_processes: int) -> Link:
    """Latency and bandwidth of the ring that takes such times: least squares of the relative errors."""
    hops = 2 * (num_processes - 1)
    rows = torch.tensor(
        [[hops / time, hops * size / num_processes / time] for time, size in zip(seconds, sizes, strict=True)]
    )
    latency, per_byte = (
        torch.linalg.lstsq(rows.double(), torch.ones(len(sizes), 1).double()).solution.flatten().tolist()
    )
    return Link(max(0.0, latency), 1 / per_byte)


def time_in_turn(acts: Sequence[Callable[[], object]], num_rounds: int) -> list[float]:
    """The median seconds of each, in turn, so that other work on the machine slows all; the slowest process counts."""
    found = []
    for _ in range(num_rounds + 1):
        seconds = []
        for act in acts:
            if dist.is_initialized():
                dist.barrier()
            begun = time.perf_counter()
            act()
            seconds.append(time.perf_counter() - begun)
        found.append(seconds)
    medians = torch.tensor(found[1:], dtype=torch.float64).median(dim=0).values  # the first round warms up
    if dist.is_initialized():
        dist.all_reduce(medians, op=dist.ReduceOp.MAX)
    return medians.tolist()


def measure(arguments: argparse.Namespace) -> dict[str, object]:
    """What this process sees; all processes call it together."""
    size = int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // size))
    side = Ours(arguments, is_compiled=False, dropout=0.1)
    documents = make_documents(8 * arguments.rows * size, arguments.length, arguments.vocab_size, is_dense=True)
    batch = side.make_batches(documents[int(os.environ["RANK"]) :: size], 1)[0]
    corrupted = side.model.corrupt(batch, seed=0, epoch=0, ratio=0.15)
    placed = side.train_step.placed

    def differentiate() -> None:
        with placed.accumulating():
            placed.loss_sums(corrupted).loss_sum.backward()

    def differentiate_together() -> None:
        placed.loss_sums(corrupted).loss_sum.backward()

    exchanges = [partial(dist.all_reduce, torch.zeros(num_bytes // 4)) for num_bytes in SIZES] if size > 1 else []
    alone_s, together_s, *exchanges_s = time_in_turn(
        [differentiate, differentiate_together, *exchanges], arguments.steps
    )
    gradient_bytes = sum(param.numel() * 4 for param in side.model.parameters() if param.requires_grad)
    return {"alone_s": alone_s, "together_s": together_s, "exchanges_s": exchanges_s, "gradient_bytes": gradient_bytes}


def check(size: int) -> dict[str, float]:
    """Measured and predicted forward and backward pass with the exchange, in this many processes here."""
    found = start(__file__, size)
    if size == 1:
        predicted = found["alone_s"]
    else:
        link = fit_link(found["exchanges_s"], SIZES, size)
        step = Step(found["alone_s"], 2 / 3, 0.0, cut_buckets(found["gradient_bytes"], 0.0))
        predicted = predict_step_s(step, Network(link, link, size), size, hides=False)
        print(
            f"gloo, {size} processes: {1e6 * link.latency_s:,.0f} us a hop, {link.bytes_per_s / 1e9:.2f} GB/s"
            f" (fitted to all-reduces of {SIZES[0]:,} to {SIZES[-1]:,} bytes)"
        )
    return {"processes": size, "predicted_s": predicted, "measured_s": found["together_s"], "alone_s": found["alone_s"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given = parser.add_argument_group("the step of one GPU", "measured: BERT-base, bf16, one H200, docs/scaling.md")
    given.add_argument("--step-ms", type=float, default=87.0)
    given.add_argument("--tokens", type=int, default=65_536, help="of a step of one GPU")
    given.add_argument("--gradient-mb", type=float, default=440.0)
    given.add_argument("--last-mb", type=float, default=94.0, help="of gradients that are ready last, the embeddings'")
    given.add_argument("--backward-share", type=float, default=0.64)
    given.add_argument("--optimizer-share", type=float, default=0.04)
    given.add_argument("--jitter", type=float, default=0.01, help="standard deviation of a step's time, as a share")
    given.add_argument("--gpus", type=int, nargs="+", default=[1, 8, 64, 512])
    tried = parser.add_argument_group("the check on this machine")
    tried.add_argument("--check-processes", type=int, nargs="*", default=[1, 2, 4])
    tried.add_argument("--family", default="bert")
    tried.add_argument("--variant", default="tiny")
    tried.add_argument("--length", type=int, default=128)
    tried.add_argument("--rows", type=int, default=8, help="of each process")
    tried.add_argument("--vocab-size", type=int, default=30522)
    tried.add_argument("--steps", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.device, arguments.precision = "cpu", "fp32"
    if arguments.measure:
        print(json.dumps(measure(arguments)))
        leave_world()
        return
    checks = [check(size) for size in arguments.check_processes]
    for found in checks:
        print(
            f"{found['processes']} processes here: predicted {1e3 * found['predicted_s']:,.0f} ms, measured"
            f" {1e3 * found['measured_s']:,.0f} ms; without the exchange {1e3 * found['alone_s']:,.0f} ms"
        )
    buckets = cut_buckets(arguments.gradient_mb * MB, arguments.last_mb * MB)
    step = Step(arguments.step_ms / 1e3, arguments.backward_share, arguments.optimizer_share, buckets)
    predictions = []
    for name, network in NETWORKS.items():
        print(f"predicted, not measured: {name}")
        for num_gpus in arguments.gpus:
            step_s = predict_step_s(step, network, num_gpus, jitter=arguments.jitter)
            exchange_s = sum(network.all_reduce_s(num_bytes, num_gpus) for num_bytes in buckets)
            predictions.append({"network": name, "gpus": num_gpus, "step_s": step_s, "exchange_s": exchange_s})
            print(
                f"{num_gpus:5} GPUs  exchange alone {1e3 * exchange_s:7.1f} ms  step {1e3 * step_s:7.1f} ms  efficiency"
                f" {step.seconds / step_s:4.0%}  {num_gpus * arguments.tokens / step_s / 1e6:8.2f}M tokens/s"
            )
    if arguments.json:
        result = {"checks": checks, "networks": {name: asdict(one) for name, one in NETWORKS.items()}}
        arguments.json.write_text(json.dumps(result | {"predictions": predictions}, indent=2) + "\n")
    if checks:
        print(f"ratio {checks[-1]['predicted_s'] / checks[-1]['measured_s']:.2f}x")


if __name__ == "__main__":
    main()
