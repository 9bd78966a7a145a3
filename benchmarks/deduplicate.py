"""The search for duplicates of `maskwright prepare --on processes`, on generated text with planted duplicates.

For each size: seconds, CPU seconds, peak memory, bytes between the rounds, and how many planted duplicates are
found. Then how the time grows with the text, what that makes of 1 TB and 10 TB, and, if datasketch is installed, MB/s
beside its MinHash and LSH with the same signatures, in one process each. The text of a size is the beginning of that
of a larger one, so sizes are measured in ascending order; what is generated is removed at the end.

    python benchmarks/deduplicate.py --gigabytes 0.1 0.2
    python benchmarks/deduplicate.py --gigabytes 1 2 5 10 --folder /data/scratch --json figures.json
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import re
import resource
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np

from maskwright.runs.duplicate_search import DuplicateSearch
from maskwright.runs.prepare_tasks import plan_tasks
from maskwright.runs.task_runners import LocalProcesses
from maskwright.sections.data import QualityConfig, build_sources
from maskwright.text.duplicates import NUM_HASHES, SHINGLE_WORDS, NearDuplicates

SEED = 7
NUM_WORDS = 60_000
FILE_DOCUMENTS = 8000
"""About 22 MB, more than the text of a task."""
FRESH, EXACT, NEAR, DECOY = range(4)
SHARES = (0.75, 0.1, 0.1, 0.05)
"""Of documents of each kind; a decoy shares half of its words with another document and is to be kept."""
CHANGED = {NEAR: 0.03, DECOY: 0.5}
"""The share of words that are others: of a near copy, 5-word shingles are then alike to about 0.9."""
BASE_WORDS, WORDS_SPREAD = 350, 0.6
PEER_DOCUMENTS = 1500
TEXTS, KINDS, WORK = "texts", "kinds", "work"


@dataclass
class Figures:
    gigabytes: float
    num_documents: int
    workers: int
    seconds: float
    cpu_seconds: float
    """Of all processes, their start included; unlike the seconds, no other work on the machine is in it."""
    mb_per_cpu_s: float
    worker_mb: float
    driver_mb: float
    shuffle_bytes_per_byte: float
    found_exact: float
    found_near: float
    rightly_dropped: float


@cache
def vocabulary() -> np.ndarray:
    """Words of two to five syllables."""
    draws = np.random.default_rng(SEED)
    syllables = np.array([a + b for a in "bdfgklmnprst" for b in ("a", "e", "i", "o", "u", "an", "er")], dtype=object)
    lengths = draws.integers(2, 6, NUM_WORDS)
    return np.array(["".join(draws.choice(syllables, length)) for length in lengths], dtype=object)


def draw_kind(document: int) -> tuple[int, int]:
    """What a document is, and the fresh document that it is made of."""
    draws = np.random.Generator(np.random.Philox(key=(SEED, document)))
    kind = int(np.searchsorted(np.cumsum(SHARES), draws.random(), side="right")) if document else FRESH
    if kind == FRESH:
        return FRESH, document
    return kind, draw_kind(int(draws.random() * document))[1]


def draw_words(document: int) -> np.ndarray:
    draws = np.random.Generator(np.random.Philox(key=(SEED + 1, document)))
    num_words = max(20, int(BASE_WORDS * math.exp(WORDS_SPREAD * draws.standard_normal())))
    return vocabulary()[(NUM_WORDS * draws.random(num_words) ** 3).astype(np.int64)]  # some words are frequent


def make_document(document: int, kind: int, origin: int) -> str:
    words = draw_words(origin)
    if kind in CHANGED:
        draws = np.random.Generator(np.random.Philox(key=(SEED + 2, document)))
        num_changed = math.ceil(CHANGED[kind] * words.size)
        start = int(draws.integers(0, words.size - num_changed + 1))
        words[start : start + num_changed] = vocabulary()[draws.integers(0, NUM_WORDS, num_changed)]
    return " ".join(words)


def write_file(folder: Path, number: int) -> int:
    """Write so many documents and, beside them, the kinds of all; returns the bytes of text."""
    file, first = folder / TEXTS / f"{number:06d}.txt", number * FILE_DOCUMENTS
    if not file.exists():
        drawn = [draw_kind(document) for document in range(first, first + FILE_DOCUMENTS)]
        content = "".join(f"{make_document(first + place, *kind)}\n" for place, kind in enumerate(drawn))
        np.save(folder / KINDS / f"{number:06d}.npy", np.array([kind for kind, _ in drawn], dtype=np.uint8))
        file.write_text(content, encoding="ascii")
    return file.stat().st_size


def count_cpu_s() -> float:
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def measure(gigabytes: float, folder: Path, workers: int, memory_gb: float) -> Figures:
    work = folder / WORK
    for kept in (folder / TEXTS, folder / KINDS):
        kept.mkdir(exist_ok=True)
    num_files = math.ceil(gigabytes * 1e9 / write_file(folder, 0))
    with ProcessPoolExecutor(workers) as pool:
        num_bytes = sum(pool.map(write_file, [folder] * num_files, range(num_files)))
    sources = build_sources(str(folder / TEXTS))
    shuffled: list[int] = []

    def look(line: str) -> None:
        print(f"\r{line}", end="", file=sys.stderr)
        if line.startswith("duplicates: judging") and not shuffled:
            shuffled.append(sum(file.stat().st_size for file in work.rglob("*") if file.is_file()))

    quality = QualityConfig(drop_duplicates=True, drop_near_duplicates=True)
    tasks = plan_tasks(sources, 16_000_000)
    begin, cpu_begin = time.perf_counter(), count_cpu_s()
    search = DuplicateSearch(work, LocalProcesses(workers), look, int(memory_gb * 1e9))
    verdicts = search.run(sources, quality, tasks)
    seconds, cpu_seconds = time.perf_counter() - begin, count_cpu_s() - cpu_begin
    is_dropped = np.concatenate([piece for task in tasks for piece in verdicts.read(task.name, work)]) > 0
    kinds = np.concatenate([np.load(file) for file in sorted((folder / KINDS).iterdir())])
    shutil.rmtree(work)
    return Figures(
        gigabytes=num_bytes / 1e9,
        num_documents=is_dropped.size,
        workers=workers,
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        mb_per_cpu_s=num_bytes / cpu_seconds / 1e6,
        worker_mb=resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
        driver_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        shuffle_bytes_per_byte=shuffled[0] / num_bytes,
        found_exact=float(is_dropped[kinds == EXACT].mean()),
        found_near=float(is_dropped[kinds == NEAR].mean()),
        rightly_dropped=float(np.isin(kinds[is_dropped], (EXACT, NEAR)).mean()),
    )


def time_ours(texts: list[str]) -> float:
    near = NearDuplicates()
    near.is_new(texts[0])
    begin = time.process_time()
    for text in texts:
        near.is_new(text)
    return time.process_time() - begin


def time_peer(texts: list[str]) -> float | None:
    try:
        from datasketch import MinHash, MinHashLSH
    except ImportError:
        return None
    begin = time.process_time()
    index = MinHashLSH(threshold=0.8, num_perm=NUM_HASHES)
    for number, text in enumerate(texts):
        words = re.findall(r"\w+", text.lower())
        shingles = {" ".join(words[place : place + SHINGLE_WORDS]) for place in range(len(words) - SHINGLE_WORDS + 1)}
        signature = MinHash(num_perm=NUM_HASHES)
        signature.update_batch([shingle.encode() for shingle in shingles])
        if not index.query(signature):
            index.insert(number, signature)
    return time.process_time() - begin


def describe(figures: Figures) -> str:
    return (
        f"{figures.gigabytes:.2f} GB, {figures.num_documents:,} documents, {figures.workers} processes:"
        f" {figures.seconds:,.0f} s, {figures.cpu_seconds:,.0f} CPU seconds ({figures.mb_per_cpu_s:.2f} MB/s),"
        f" peak {figures.worker_mb:,.0f} MB a process and {figures.driver_mb:,.0f} MB here,"
        f" {figures.shuffle_bytes_per_byte:.2f} bytes between rounds a byte of text;"
        f" found {figures.found_exact:.2%} of exact and {figures.found_near:.2%} of near copies,"
        f" {figures.rightly_dropped:.2%} of what is dropped was planted"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[0.05], help="sizes of the text")
    parser.add_argument("--folder", type=Path, help="where text and files between rounds go; needs 1.3 times the text")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--memory", type=float, default=1.0, metavar="GB", help="the limit of each process")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    measured = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        for gigabytes in sorted(arguments.gigabytes):
            spawn = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(1, spawn) as pool:  # peaks of memory for each size
                given = (gigabytes, Path(name), arguments.workers, arguments.memory)
                measured.append(pool.submit(measure, *given).result())
            print(f"\r{describe(measured[-1])}", flush=True)
    for one, other in pairwise(measured):
        power = math.log(other.cpu_seconds / one.cpu_seconds) / math.log(other.gigabytes / one.gigabytes)
        print(
            f"from {one.gigabytes:.2f} to {other.gigabytes:.2f} GB: CPU time grows with the power {power:.2f} of text"
        )
    for terabytes in (1, 10):
        core_hours = terabytes * 1e6 / measured[-1].mb_per_cpu_s / 3600
        shuffled = terabytes * measured[-1].shuffle_bytes_per_byte
        print(f"on paper, at the last rate: {terabytes} TB, {core_hours:,.0f} core hours, {shuffled:.2f} TB shuffled")
    texts = [make_document(document, *draw_kind(document)) for document in range(PEER_DOCUMENTS)]
    megabytes = sum(map(len, texts)) / 1e6
    ours_s, peer_s = time_ours(texts), time_peer(texts)
    print(f"signatures and bands in memory, one core  {megabytes / ours_s:8.2f} MB/s")
    result = {"sizes": [asdict(figures) for figures in measured], "mb_per_s": megabytes / ours_s}
    if peer_s is not None:
        print(f"datasketch, MinHash and MinHashLSH        {megabytes / peer_s:8.2f} MB/s")
        result |= {"peer_mb_per_s": megabytes / peer_s, "ratio": peer_s / ours_s}
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    print(f"ratio {peer_s / ours_s:.2f}x" if peer_s is not None else "no ratio: pip install datasketch for the peer")


if __name__ == "__main__":
    main()
