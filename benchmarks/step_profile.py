"""Where the time of our training step goes, and whether anything in it waits for the device.

Runs steps as in a run, with the loader feeding them, first with torch's synchronisation check set to fail, then under
its profiler. Kernels are summed by what they do; `idle` is the time in which the GPU had nothing to run.

    python benchmarks/step_profile.py --variant base --rows 512
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from pathlib import Path

import torch
from step_sides import FAMILIES, Ours, make_documents
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

GROUPS = {
    "matrix products": ("gemm", "nvjet", "cutlass", "cublas", "xmma"),
    "attention": ("flex_attention", "fmha", "flash", "cudnn", "sdpa", "attention"),
    "optimizer and clipping": ("multi_tensor", "foreach", "FusedAdam", "lerp"),
    "copies": ("Memcpy", "Memset"),
    "compiled elementwise, norms, softmax": ("triton",),
}
NUM_WARM_UP = 4


def group_kernels(profiled: profile) -> Counter[str]:
    """Milliseconds by group."""
    totals: Counter[str] = Counter()
    for event in profiled.key_averages():
        if event.device_type != DeviceType.CUDA:
            continue
        name = next(
            (group for group, words in GROUPS.items() if any(word.lower() in event.key.lower() for word in words)),
            "other kernels",
        )
        totals[name] += event.self_device_time_total / 1e3
    return totals


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", default="bert", choices=list(FAMILIES))
    parser.add_argument("--variant", default="base")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--vocab-size", type=int, default=30522)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--dense", action="store_true")
    parser.add_argument("--eager", action="store_true", help="without compiled kernels")
    parser.add_argument("--top", type=int, default=12, help="kernels to name")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    arguments.device = "cuda"
    documents = make_documents(8 * arguments.rows, arguments.length, arguments.vocab_size, arguments.dense)
    side = Ours(arguments, not arguments.eager, arguments.dropout)
    batches = side.make_batches(documents, NUM_WARM_UP + arguments.steps)
    for batch in batches[:NUM_WARM_UP]:
        side.step(batch)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    begun = time.perf_counter()
    for batch in batches[NUM_WARM_UP:]:
        side.step(batch)
    issued_ms = 1e3 * (time.perf_counter() - begun) / arguments.steps
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    step_ms = 1e3 * (time.perf_counter() - begun) / arguments.steps
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiled:
        for batch in batches[NUM_WARM_UP:]:
            side.step(batch)
        torch.cuda.synchronize()
    totals = group_kernels(profiled)
    num_tokens = arguments.rows * arguments.length
    print(
        f"{arguments.family} {arguments.variant}, {arguments.rows} rows of {arguments.length}, dropout"
        f" {arguments.dropout:g}: {step_ms:.1f} ms a step, {num_tokens / step_ms:,.0f}k tokens/s; issued in"
        f" {issued_ms:.1f} ms without waiting once; {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB"
    )
    busy = 0.0
    for name, milliseconds in totals.most_common():
        busy += milliseconds / arguments.steps
        print(f"  {name:<40}{milliseconds / arguments.steps:8.2f} ms")
    print(f"  {'idle':<40}{step_ms - busy:8.2f} ms")
    kernels = [event for event in profiled.key_averages() if event.device_type == DeviceType.CUDA]
    for event in sorted(kernels, key=lambda event: -event.self_device_time_total)[: arguments.top]:
        each = event.self_device_time_total / 1e3 / arguments.steps
        print(f"    {each:7.2f} ms  {event.count / arguments.steps:5.0f}x  {event.key[:110]}")
    if arguments.json:
        per_step = {name: milliseconds / arguments.steps for name, milliseconds in totals.items()}
        arguments.json.write_text(json.dumps({"step_ms": step_ms, "kernels_ms": per_step}, indent=2) + "\n")


if __name__ == "__main__":
    main()
