"""How fast packed batches come out of shards on disk, beside transformers' collator over the same ids in memory.

The shards are made here: documents of log-normal length (mean about 50 tokens), on one core, memory-mapped.

    python benchmarks/data_loader.py --tokens 20000000
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from step_sides import build_peer_tokenizer
from transformers import DataCollatorForLanguageModeling

from maskwright.data.loader import PackedLoader
from maskwright.data.shards import MANIFEST_FILE, PreparedShards, ShardWriter

VOCAB_SIZE, CLS, SEP, PAD, FIRST = 30522, 2, 3, 0, 5


def write_shards(folder: Path, num_tokens: int, num_shards: int) -> None:
    random = np.random.default_rng(0)
    shards = []
    for number in range(num_shards):
        lengths = np.clip(np.exp(random.normal(3.7, 0.7, num_tokens // num_shards // 50)), 3, 2000).astype(np.int64)
        with ShardWriter(folder / "train", f"{number:05d}", "<u2", source=0) as writer:
            ids = random.integers(FIRST, VOCAB_SIZE, int(lengths.sum()))
            writer.add(ids, lengths, word_starts=np.ones(len(ids), dtype=bool))
            shards.append(asdict(writer.close()))
    counts = {"num_tokens": sum(shard["num_tokens"] for shard in shards), "num_encoded_tokens": 0}
    counts |= {"num_empty_documents": 0, "num_unknown_tokens": 0}
    splits = {"train": shards}
    manifest = {"key": "", "tokenizer_sha256": "", "sources": [{"weight": 1.0}], "splits": splits, **counts}
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest))


def open_loader(folder: Path, length: int, rows: int) -> PackedLoader:
    return PackedLoader(
        PreparedShards(folder, "train"),
        cls_token_id=CLS,
        sep_token_id=SEP,
        pad_token_id=PAD,
        row_length=length,
        rows_per_batch=rows,
    )


def peer_batches(folder: Path, length: int, rows: int) -> Iterator[int]:
    """Real tokens of padded batches: ids from the same shards, collated and masked as run_mlm does."""
    store = PreparedShards(folder, "train").store(0)
    collator = DataCollatorForLanguageModeling(build_peer_tokenizer(VOCAB_SIZE))
    documents = zip(store.offsets[:-1], store.offsets[1:], strict=True)
    while chunk := list(islice(documents, rows)):
        rows_of_ids = [[CLS, *store.ids[start : min(end, start + length - 2)].tolist(), SEP] for start, end in chunk]
        batch = collator([{"input_ids": ids} for ids in rows_of_ids])
        assert batch["input_ids"].shape[0] == len(chunk)
        yield sum(map(len, rows_of_ids))


def tokens_per_second(num_tokens_of_batches: Iterator[int], num_batches: int) -> float:
    next(num_tokens_of_batches)
    begin = time.perf_counter()
    total = sum(islice(num_tokens_of_batches, num_batches))
    return total / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=20_000_000)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {0})  # one core for everything, the loader's thread included
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_shards(folder, arguments.tokens, arguments.shards)
        begin = time.perf_counter()
        loader = open_loader(folder, arguments.length, arguments.rows)
        first_open_s = time.perf_counter() - begin
        begin = time.perf_counter()
        loader = open_loader(folder, arguments.length, arguments.rows)
        next(loader.epoch(0))
        open_s = time.perf_counter() - begin
        num_batches = max(len(loader) - 2, 1)
        ours = tokens_per_second((batch.num_tokens() for batch in loader.epoch(0)), num_batches)
        peer = tokens_per_second(peer_batches(folder, arguments.length, arguments.rows), 20)
        full = loader.utilisation()
    print(f"{arguments.tokens:,} tokens in {arguments.shards} shards, rows of {arguments.length}, {full:.1%} full")
    print(f"first opening (packs every shard once)  {first_open_s:8.2f} s")
    print(f"opening again, to the first batch       {open_s:8.2f} s")
    print(f"maskwright              {ours:14,.0f} tokens/s")
    print(f"transformers' collator  {peer:14,.0f} tokens/s")
    figures = {"tokens_per_s": ours, "peer_tokens_per_s": peer, "open_s": open_s, "first_open_s": first_open_s}
    if arguments.json:
        arguments.json.write_text(json.dumps({**figures, "ratio": ours / peer}, indent=2) + "\n")
    print(f"ratio {ours / peer:.2f}x")


if __name__ == "__main__":
    main()
