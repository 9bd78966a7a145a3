"""Our kernels beside those of torch that do the same, on a GPU: attention among documents of a flat row, and the norm
of a sum.

Attention is timed for rows of documents whose lengths are spread around each of --lengths, beside FlashAttention, which
takes the same row; inference takes ours where no document is longer than 128 tokens. `ratio` is the smallest of those
and of the norm.

    python benchmarks/gpu_kernels.py
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from maskwright.models.documents import attend_with_flash
from maskwright.models.kernels.added_norm import add_and_normalize, add_and_normalize_plainly
from maskwright.models.kernels.short_documents import attend_short_documents

NUM_WARM_UP, NUM_TIMED = 5, 30
SHORT = 128


def time_us(call: Callable[[], Any]) -> float:
    for _ in range(NUM_WARM_UP):
        call()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    events[0].record()
    for _ in range(NUM_TIMED):
        call()
    events[1].record()
    torch.cuda.synchronize()
    return 1e3 * events[0].elapsed_time(events[1]) / NUM_TIMED


def measure_attention(mean: int, arguments: argparse.Namespace) -> dict[str, Any]:
    random = np.random.default_rng(0)
    lengths = random.integers(max(1, mean // 2), mean + mean // 2 + 1, arguments.tokens // mean)
    longest = int(lengths.max())
    numbers = torch.from_numpy(np.repeat(np.arange(len(lengths)) + 1, lengths)).cuda()
    starts = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)).cuda()
    shape = (len(numbers), 3, arguments.heads, arguments.head_size)
    query, key, value = torch.randn(shape, device="cuda", dtype=torch.bfloat16).unbind(1)
    ours = time_us(lambda: attend_short_documents(query, key, value, numbers, starts))
    theirs = time_us(lambda: attend_with_flash(query, key, value, starts, longest, None))
    return {"what": f"attention, documents of about {mean}", "longest": longest, "ours_us": ours, "torch_us": theirs}


def measure_norm(arguments: argparse.Namespace) -> dict[str, Any]:
    width = arguments.heads * arguments.head_size
    left, right = torch.randn(2, arguments.tokens, width, device="cuda", dtype=torch.bfloat16)
    weight, bias = torch.randn(2, width, device="cuda", dtype=torch.bfloat16)
    given = (left, right, weight, bias, 1e-12)
    ours = time_us(lambda: add_and_normalize(*given))
    theirs = time_us(lambda: add_and_normalize_plainly(*given))
    return {"what": f"norm of a sum, width {width}", "longest": 0, "ours_us": ours, "torch_us": theirs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=32_768, help="of a row")
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--head-size", type=int, default=64)
    parser.add_argument("--lengths", type=int, nargs="+", default=[8, 16, 32, 64, 85, 128, 256, 512])
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("gpu_kernels.py compares kernels of GPUs, and this machine has none that torch can use")
    with torch.inference_mode():
        rows = [measure_norm(arguments), *(measure_attention(mean, arguments) for mean in arguments.lengths)]
    print(f"{torch.cuda.get_device_name()}, bf16, {arguments.tokens:,} tokens, {arguments.heads} heads of"
          f" {arguments.head_size}")  # fmt: skip
    print(f"{'':<36}{'ours us':>10}{'torch us':>10}{'torch / ours':>14}")
    for row in rows:
        row["ratio"] = row["torch_us"] / row["ours_us"]
        print(f"{row['what']:<36}{row['ours_us']:10.1f}{row['torch_us']:10.1f}{row['ratio']:14.2f}")
    ratio = min(row["ratio"] for row in rows if row["longest"] <= SHORT)
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows, "ratio": ratio}, indent=1) + "\n", encoding="utf-8")
    print(f"ratio {ratio:.2f}x")


if __name__ == "__main__":
    main()
