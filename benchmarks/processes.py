"""Two processes beside one: the same batch trained by one process with all threads and by several with a share each.

In every process of the second way (DDP over gloo on CPUs) three times are taken: of a step, of the same step without
exchanging gradients, and of exchanging gradients alone. What the first exceeds the second by is communication that is
waited for; the rest of the third ran beside the backward pass. docs/scaling.md reckons with these sizes for more.

    python benchmarks/processes.py --variant tiny --rows 32
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from step_sides import Ours, make_documents

from maskwright.training.distributed.world import leave_world


def time_runs(act: Callable[[], object], num_runs: int) -> float:
    """Seconds of one, over several after one to warm up; the slowest process counts."""
    act()
    if dist.is_initialized():
        dist.barrier()
    begun = time.perf_counter()
    for _ in range(num_runs):
        act()
    seconds = torch.tensor((time.perf_counter() - begun) / num_runs)
    if dist.is_initialized():
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return float(seconds)


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    """What this process sees; all processes call it together."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    torch.set_num_threads(max(1, arguments.threads // size))
    arguments.rows //= size
    side = Ours(arguments, is_compiled=False, dropout=0.1)
    documents = make_documents(8 * arguments.rows * size, arguments.length, arguments.vocab_size, is_dense=True)
    rank = int(os.environ.get("RANK", "0"))
    batch = side.make_batches(documents[rank::size], 1)[0]
    figures = {"step_s": time_runs(lambda: side.step(batch), arguments.steps), "rows": arguments.rows * size}
    gradients = [param.grad for param in side.model.parameters() if param.grad is not None]
    figures["gradient_bytes"] = sum(grad.numel() * grad.element_size() for grad in gradients)
    if size > 1:
        corrupted = side.model.corrupt(batch, seed=0, epoch=0, ratio=0.15)
        placed = side.train_step.placed

        def differentiate() -> None:
            with placed.accumulating():
                placed.loss_sums(corrupted).loss_sum.backward()

        def differentiate_together() -> None:
            placed.loss_sums(corrupted).loss_sum.backward()

        flat = torch.zeros(int(figures["gradient_bytes"]) // 4)
        figures["together_s"] = time_runs(differentiate_together, arguments.steps)
        figures["alone_s"] = time_runs(differentiate, arguments.steps)
        figures["exchange_s"] = time_runs(lambda: dist.all_reduce(flat), arguments.steps)
    return figures


def start(script: str, size: int) -> dict[str, Any]:
    """Run `script --measure` with this command's arguments in `size` processes; the figures of the main one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [sys.executable, script, "--measure", *sys.argv[1:]]
    processes = []
    for rank in range(size):
        places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = {**os.environ, **{name: str(value) for name, value in places.items()}}
        processes.append(subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("a process failed")
    return dict(json.loads(outputs[0].splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", default="bert")
    parser.add_argument("--variant", default="tiny")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rows", type=int, default=32, help="of the whole batch")
    parser.add_argument("--vocab-size", type=int, default=30522)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of all processes together")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.device, arguments.precision = "cpu", "fp32"
    if arguments.measure:
        print(json.dumps(measure(arguments)))
        leave_world()
        return
    one, several = start(__file__, 1), start(__file__, arguments.processes)
    speeds = [figures["rows"] * arguments.length / figures["step_s"] for figures in (one, several)]
    waited = max(0.0, several["together_s"] - several["alone_s"])
    hidden = max(0.0, 1.0 - waited / several["exchange_s"])
    print(f"bert {arguments.variant}, {arguments.rows} rows of {arguments.length}, {arguments.threads} threads in all")
    print(f"1 process    {speeds[0]:10,.0f} tokens/s  {1e3 * one['step_s']:8,.0f} ms a step")
    print(f"{arguments.processes} processes  {speeds[1]:10,.0f} tokens/s  {1e3 * several['step_s']:8,.0f} ms a step")
    print(
        f"gradients {several['gradient_bytes'] / 2**20:.0f} MiB, exchanged in {1e3 * several['exchange_s']:.0f} ms;"
        f" forward and backward {1e3 * several['alone_s']:.0f} ms, with the exchange"
        f" {1e3 * several['together_s']:.0f} ms: {hidden:.0%} of it runs beside the backward pass"
    )
    if arguments.json:
        arguments.json.write_text(json.dumps({"one": one, "several": several}, indent=2) + "\n")
    print(f"ratio {speeds[1] / speeds[0]:.2f}x")


if __name__ == "__main__":
    main()
