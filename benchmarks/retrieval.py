"""Retrieval on the paragraphs of SQuAD: BM25, an encoder as it is, and dense, late, sparse and reranking models of it.

Paragraphs are documents, and a question is answered by its own. Questions about the first articles are trained on,
those about the others are asked, over the paragraphs of all. Each model is a whole `maskwright finetune` from the same
encoder; a reranker learns from what `maskwright mine bm25` finds. Printed are nDCG@10 with its interval, bytes of the
index for a document, queries a second of an open index, and seconds of training. With --folder runs and indexes stay
there, and what is finished is not done again.

`ratio` is the nDCG@10 of vectors over that of BM25. The speed of their training is that of benchmarks/contrastive.py.

    python benchmarks/retrieval.py --squad dev-v1.1.json --model all-MiniLM-L6-v2 --questions 2000 --max-length 96
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
from itertools import islice
from pathlib import Path
from typing import Any

import maskwright as mw
from maskwright.evaluation.ranking import DEPTH, Found, measure_rankings
from maskwright.inference.search.lexical import BM25
from maskwright.inference.search.rerank import Reranker

KINDS = ("dense", "colbert", "splade")
SHARE_TRAINED_ON = 0.8
BATCH_SIZE = 32
RERANK_DEPTH, NUM_NEGATIVES = 20, 2


@dataclass
class Collection:
    """A folder in BEIR's layout, and its training pairs as a table."""

    folder: Path
    pairs: Path
    queries: list[str] = field(default_factory=list)
    grades: list[dict[str, int]] = field(default_factory=list)


def write_lines(path: Path, records: list[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")


def write_collection(squad: Path, folder: Path, num_questions: int, num_asked: int, num_paragraphs: int) -> Collection:
    """`num_paragraphs` of each article alone."""
    articles = json.loads(squad.read_text(encoding="utf-8"))["data"]
    first_asked = round(SHARE_TRAINED_ON * len(articles))
    collection = Collection(folder, folder / "pairs.jsonl")
    documents, asked, pairs = [], [], []
    for number, article in enumerate(articles):
        for paragraph in article["paragraphs"][:num_paragraphs]:
            name = f"d{len(documents)}"
            documents.append({"_id": name, "text": paragraph["context"]})
            for question in islice((one["question"] for one in paragraph["qas"]), 5):
                if number < first_asked:
                    pairs.append({"query": question, "positive": paragraph["context"]})
                else:
                    asked.append((name, question))
    asked = spread(asked, num_asked)
    queries = [{"_id": f"q{number}", "text": question} for number, (_, question) in enumerate(asked)]
    grades = [f"q{number}\t{name}\t1" for number, (name, _) in enumerate(asked)]
    collection.queries = [one["text"] for one in queries]
    collection.grades = [{name: 1} for name, _ in asked]
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    write_lines(folder / "corpus.jsonl", documents)
    write_lines(folder / "queries.jsonl", queries)
    write_lines(collection.pairs, spread(pairs, num_questions))
    (folder / "qrels" / "test.tsv").write_text(
        "\n".join(["query-id\tcorpus-id\tscore", *grades]) + "\n", encoding="utf-8"
    )
    return collection


def spread(values: list[Any], most: int) -> list[Any]:
    """Some of all articles: questions about one paragraph are answered alike, right or wrong."""
    return [values[number * len(values) // most] for number in range(most)] if most < len(values) else values


def run(*words: Any) -> str:
    """One command of ours; its standard output."""
    command = [sys.executable, "-m", "maskwright", *map(str, words)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
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
    ndcg = measure_rankings(ranked, collection.grades)[0].summarise("all", "all")
    sizes = [one.stat().st_size for one in folder.rglob("*.np[yz]") if one.name != "offsets.npy"]
    return {
        "system": name,
        "ndcg@10": ndcg.mean,
        "interval": f"{ndcg.low:.3f} to {ndcg.high:.3f}",
        "bytes": sum(sizes) / searcher.index.manifest.num_documents,
        "queries/s": rate,
    }


def read_seconds(run_folder: Path) -> float:
    return float(json.loads((run_folder / "final.json").read_text(encoding="utf-8"))["seconds"])


def compare(folder: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    collection = write_collection(args.squad, folder / "squad", args.questions, args.asked, args.paragraphs)
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
        train(args.model, hard, out, args, "rerank", "--num-negatives", str(NUM_NEGATIVES))
        row = measure(f"BM25, {RERANK_DEPTH} reranked", BM25, collection, folder / "index-bm25", out)
        rows.append(row | {"training s": read_seconds(out)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--squad", type=Path, required=True, help="questions in SQuAD's layout")
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
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    with tempfile.TemporaryDirectory() as name:
        rows = compare(args.folder or Path(name), args)
    print_rows(rows)
    figures = {row["system"]: row["ndcg@10"] for row in rows}
    ratio = figures.get("dense", figures["dense, as it is"]) / figures["BM25"]
    if args.json is not None:
        args.json.write_text(json.dumps({"rows": rows, "ratio": ratio}, indent=2) + "\n", encoding="utf-8")
    print(f"ratio {ratio:.2f}x")


def format_figure(figure: float | None) -> str:
    if figure is None:
        return ""
    return f"{figure:.3f}" if figure <= 1 else f"{figure:,.0f}"


def print_rows(rows: list[dict[str, Any]]) -> None:
    names = ("system", "ndcg@10", "interval", "bytes", "queries/s", "training s")
    print("| " + " | ".join(names) + " |\n|" + "---|" * len(names))
    for row in rows:
        cells = [row.get(name) for name in names]
        shown = [one if isinstance(one, str) else format_figure(one) for one in cells]
        print("| " + " | ".join(shown) + " |", flush=True)


if __name__ == "__main__":
    main()
