"""Preparation of shards beside the bare speed of `tokenizers.encode_batch` on the same texts and cores.

Ours reads a compressed JSON-lines file, tokenizes, splits off validation documents, writes shards and checksums; the
peer only tokenizes texts that are in memory already. Without `--texts` the built-in corpus is used, repeated.

    python benchmarks/data_prepare.py --texts corpus.jsonl.zst --tokenizer tokenizer.json
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

from tokenizers import Tokenizer as Backend

from maskwright.runs.prepare import prepare
from maskwright.sections.data import build_sources
from maskwright.text.sources import read_python_documentation, read_sources
from maskwright.text.tokenizer.tokenizer import Tokenizer, load_tokenizer
from maskwright.text.tokenizer.train import train_tokenizer

REPEATS = 8


def write_builtin(folder: Path) -> Path:
    path = folder / "builtin.jsonl"
    documents = read_python_documentation() * REPEATS
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents), encoding="utf-8")
    return path


def time_peer(texts: list[str], tokenizer: Tokenizer) -> float:
    backend = Backend.from_str(tokenizer.backend.to_str())
    backend.encode_batch(texts[:50], add_special_tokens=False)
    begin = time.perf_counter()
    backend.encode_batch(texts, add_special_tokens=False)
    return time.perf_counter() - begin


def time_ours(source: Path, tokenizer: Tokenizer, out: Path, num_workers: int) -> float:
    begin = time.perf_counter()
    prepare(build_sources(str(source)), tokenizer, out, num_workers=num_workers)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, help="a source of texts")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer; trained on the texts if not given")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = arguments.texts or write_builtin(folder)
        texts = list(read_sources(str(source)))
        tokenizer = load_tokenizer(arguments.tokenizer) if arguments.tokenizer else train_tokenizer(texts)
        num_bytes = sum(len(text.encode()) for text in texts)
        ours_s = time_ours(source, tokenizer, folder / "out", arguments.workers)
        peer_s = time_peer(texts, tokenizer)
    ours, peer = num_bytes / ours_s / 1e6, num_bytes / peer_s / 1e6
    print(f"{num_bytes / 1e6:,.0f} MB of text in {len(texts):,} documents, {arguments.workers} workers")
    print(f"maskwright prepare, from file to shards   {ours:8.2f} MB/s")
    print(f"tokenizers.encode_batch, in memory        {peer:8.2f} MB/s")
    if arguments.json:
        figures = {"mb_per_s": ours, "peer_mb_per_s": peer, "ratio": ours / peer}
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")
    print(f"ratio {ours / peer:.2f}x")


if __name__ == "__main__":
    main()
