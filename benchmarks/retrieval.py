"""Retrieval on published data: BM25, an encoder as it is, and dense, late, sparse and reranking models of it.

In SQuAD, questions find their paragraphs; in QNLI the sentences that answer them; in SNLI, premises find what follows
from them; in Banking77, questions those with the same intent (benchmarks/retrieval_sets.py). Each model is a whole
`maskwright finetune` from the same encoder; a reranker learns from what `maskwright mine bm25` finds. Printed are
nDCG@10 with its interval, the difference to BM25 on the same questions with its own (paired), bytes of the index for a
document, queries a second of an open index on the CPU, and seconds of training on
--device. With --folder runs and indexes stay there, and what is finished is not done again.

`ratio` is the nDCG@10 of vectors over that of BM25. The speed of their training is that of benchmarks/contrastive.py.

    python benchmarks/retrieval.py --squad dev-v1.1.json --model all-MiniLM-L6-v2 --questions 2000 --max-length 96
    python benchmarks/retrieval.py --qnli dev.tsv --snli dev.jsonl --model all-MiniLM-L6-v2 --only dense
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retrieval_sets import READERS, spread

import maskwright as mw
from maskwright.evaluation.figures import Measure
from maskwright.evaluation.ranking import DEPTH, Found, measure_rankings
from maskwright.inference.search.lexical import BM25
from maskwright.inference.search.rerank import Reranker

KINDS = ("dense", "colbert", "splade")
BATCH_SIZE = 32
RERANK_DEPTH, NUM_NEGATIVES = 20, 2
ENVIRONMENT = {**os.environ, "TOKENIZERS_PARALLELISM": "true"}
"""Of commands."""


@dataclass
class Collection:
    """A folder in BEIR's layout, and its training pairs as a table."""

    folder: Path
    pairs: Path
    queries: list[str] = field(default_factory=list)
    grades: list[dict[str, int]] = field(default_factory=list)
    baseline: Measure | None = None
    """That of BM25, which is measured first."""


def write_lines(path: Path, records: list[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")


def write_collection(name: str, file: Path, folder: Path, args: argparse.Namespace) -> Collection:
    found, collection = READERS[name](file, args.paragraphs), Collection(folder, folder / "pairs.jsonl")
    asked = spread(found.asked, args.asked)
    queries = [{"_id": f"q{number}", "text": question} for number, (question, _) in enumerate(asked)]
    collection.queries = [one["text"] for one in queries]
    collection.grades = [{f"d{place}": 1 for place in places} for _, places in asked]
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    write_lines(
        folder / "corpus.jsonl", [{"_id": f"d{number}", "text": text} for number, text in enumerate(found.documents)]
    )
    write_lines(folder / "queries.jsonl", queries)
    pairs = spread(found.pairs, args.questions)
    write_lines(collection.pairs, [{"query": query, "positive": text} for query, text in pairs])
    lines = [f"q{number}\t{name}\t1" for number, answers in enumerate(collection.grades) for name in answers]
    (folder / "qrels" / "test.tsv").write_text(
        "\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n", encoding="utf-8"
    )
    print(f"{name}: {len(found.documents):,} documents, {len(pairs):,} pairs, {len(asked):,} questions", flush=True)
    return collection


def run(*words: Any) -> str:
    """One command of ours; its standard output."""
    command = [sys.executable, "-m", "maskwright", *map(str, words)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=ENVIRONMENT)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def train(model: str, table: Path, out: Path, args: argparse.Namespace, *words: str) -> None:
    if (out / "final.json").is_file():
        return
    shared = ("--train", table, "--epochs", 1, "--batch-size", BATCH_SIZE, "--max-length", args.max_length)
    run("finetune", *words, "--model", model, *shared, "--out", out, f"training.device={args.device}")


def measure(
    name: str, model: str, collection: Collection, folder: Path, reranker: Path | None = None
) -> dict[str, Any]:
    """Quality, size and speed of an index."""
    if not folder.is_dir():
        mw.index(model, collection.folder / "corpus.jsonl", out=folder)
    searcher = mw.Searcher(folder)
    opened = None if reranker is None else Reranker(str(reranker))
    top_k = DEPTH if opened is None else RERANK_DEPTH
    searcher.search(collection.queries[:8], top_k, opened, RERANK_DEPTH)
    begun = time.perf_counter()
    found = searcher.search(collection.queries, top_k, opened, RERANK_DEPTH)
    rate = len(collection.queries) / (time.perf_counter() - begun)
    ranked = [Found([hit.id for hit in hits], [hit.score for hit in hits]) for hits in found]
    of_each = measure_rankings(ranked, collection.grades)[0]
    ndcg = of_each.summarise("all", "all")
    collection.baseline = collection.baseline or of_each
    difference = of_each.compare(collection.baseline, "all", "all")
    assert difference is not None
    sizes = [one.stat().st_size for one in folder.rglob("*.np[yz]") if one.name != "offsets.npy"]
    return {
        "set": collection.folder.name,
        "system": name,
        "ndcg@10": ndcg.mean,
        "interval": f"{ndcg.low:.3f} to {ndcg.high:.3f}",
        "over BM25": f"{difference.difference:+.3f} ({difference.low:+.3f} to {difference.high:+.3f})",
        "bytes": sum(sizes) / searcher.index.manifest.num_documents,
        "queries/s": rate,
    }


def read_seconds(run_folder: Path) -> float:
    return float(json.loads((run_folder / "final.json").read_text(encoding="utf-8"))["seconds"])


def compare(name: str, file: Path, folder: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    collection = write_collection(name, file, folder / name, args)
    rows = [measure("BM25", BM25, collection, folder / "index-bm25")]
    rows.append(measure("dense, as it is", args.model, collection, folder / "index-as-is"))
    for kind in KINDS:
        if kind in args.only:
            out = folder / f"run-{kind}"
            train(args.model, collection.pairs, out, args, "retrieval", "--kind", kind)
            row = measure(kind, str(out), collection, folder / f"index-{kind}")
            rows.append(row | {"training s": read_seconds(out)})
            print_rows(rows[-1:])
    if "rerank" in args.only:
        hard, out = folder / "hard.jsonl", folder / "run-rerank"
        if not hard.is_file():
            run("mine", "bm25", collection.pairs, "--num-negatives", NUM_NEGATIVES, "--out", hard)
        train(args.model, hard, out, args, "rerank")
        row = measure(f"BM25, {RERANK_DEPTH} reranked", BM25, collection, folder / "index-bm25", out)
        rows.append(row | {"training s": read_seconds(out)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in READERS:
        parser.add_argument(f"--{name}", type=Path, help="the file as published")
    parser.add_argument("--model", required=True, help="the encoder")
    parser.add_argument("--questions", type=int, default=2_000, help="that are trained on")
    parser.add_argument("--asked", type=int, default=500, help="questions that are asked")
    parser.add_argument("--paragraphs", type=int, default=1_000, help="of an article, at most")
    parser.add_argument("--max-length", type=int, default=96)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", nargs="*", default=[*KINDS, "rerank"], choices=[*KINDS, "rerank"])
    parser.add_argument("--folder", type=Path, help="where runs and indexes are kept")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    given = {name: getattr(args, name) for name in READERS if getattr(args, name) is not None}
    if not given:
        parser.error(f"give one of --{', --'.join(READERS)}")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # searches are measured on the CPU; training sees all devices
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for name, file in given.items():
            rows += compare(name, file, (args.folder or Path(temporary)) / name, args)
    print_rows(rows)
    figures = {row["system"]: row["ndcg@10"] for row in reversed(rows)}
    ratio = figures.get("dense", figures["dense, as it is"]) / figures["BM25"]
    if args.json is not None:
        args.json.write_text(json.dumps({"rows": rows, "ratio": ratio}, indent=2) + "\n", encoding="utf-8")
    print(f"ratio {ratio:.2f}x")


def format_figure(figure: float | None) -> str:
    if figure is None:
        return ""
    return f"{figure:.3f}" if figure <= 1 else f"{figure:,.0f}"


def print_rows(rows: list[dict[str, Any]]) -> None:
    names = ("set", "system", "ndcg@10", "interval", "over BM25", "bytes", "queries/s", "training s")
    print("| " + " | ".join(names) + " |\n|" + "---|" * len(names))
    for row in rows:
        cells = [row.get(name) for name in names]
        shown = [one if isinstance(one, str) else format_figure(one) for one in cells]
        print("| " + " | ".join(shown) + " |", flush=True)


if __name__ == "__main__":
    main()
