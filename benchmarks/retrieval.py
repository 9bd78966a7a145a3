"""Retrieval on the paragraphs of SQuAD: BM25, an encoder as it is, and dense, late, sparse and reranking models of it.

Paragraphs are documents, and a question is answered by its own. Questions about the first articles are trained on,
those about the others are asked, over the paragraphs of all. Each model is a whole `maskwright finetune` from the same
encoder; a sparse one needs a head for masked tokens, which `maskwright adapt` trains on the paragraphs first. Printed
are nDCG@10, bytes of the index for a document, queries a second of an open index, and seconds of training.

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
from maskwright.inference.search.lexical import BM25

KINDS = ("dense", "colbert", "splade")
SHARE_TRAINED_ON = 0.8
BATCH_SIZE = 32
RERANK_DEPTH = 20


@dataclass
class Collection:
    """A folder in BEIR's layout, and its training pairs as a table."""

    folder: Path
    pairs: Path
    queries: list[str] = field(default_factory=list)


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
    (folder / "qrels").mkdir(parents=True)
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


def train(model: str, collection: Collection, out: Path, args: argparse.Namespace, *words: str) -> None:
    shared = ("--train", collection.pairs, "--epochs", 1, "--batch-size", BATCH_SIZE, "--max-length", args.max_length)
    run("finetune", *words, "--model", model, *shared, "--out", out, f"training.device={args.device}")


def measure(name: str, model: str, collection: Collection, folder: Path, *words: str) -> dict[str, Any]:
    """Quality by `eval`, size and speed of an index."""
    content = json.loads(run("eval", model, "retrieval", collection.folder, "--json", *words))
    figures = {line["measure"]: line["mean"] for line in content["figures"]}
    mw.index(model, collection.folder / "corpus.jsonl", out=folder)
    skipped = ("offsets.npy",)
    sizes = [one.stat().st_size for one in folder.rglob("*.np[yz]") if one.name not in skipped]
    searcher = mw.Searcher(folder)
    searcher.search(collection.queries[:8])
    begun = time.perf_counter()
    searcher.search(collection.queries)
    rate = len(collection.queries) / (time.perf_counter() - begun)
    return {
        "system": name,
        "ndcg@10": figures["ndcg@10"],
        "recall@100": figures["recall@100"],
        "bytes": sum(sizes) / content["documents"],
        "queries/s": rate,
    }


def read_seconds(run_folder: Path) -> float:
    return float(json.loads((run_folder / "final.json").read_text(encoding="utf-8"))["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--squad", type=Path, required=True, help="questions in SQuAD's layout")
    parser.add_argument("--model", required=True, help="the encoder")
    parser.add_argument("--questions", type=int, default=2_000, help="that are trained on")
    parser.add_argument("--asked", type=int, default=500, help="questions that are asked")
    parser.add_argument("--paragraphs", type=int, default=1_000, help="of an article, at most")
    parser.add_argument("--max-length", type=int, default=96)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--adapt-steps", type=int, default=100, help="of the head for masked tokens")
    parser.add_argument("--only", nargs="*", default=[*KINDS, "rerank"], choices=[*KINDS, "rerank"])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        collection = write_collection(args.squad, folder / "squad", args.questions, args.asked, args.paragraphs)
        rows = [measure("BM25", BM25, collection, folder / "bm25")]
        rows.append(measure("dense, untrained", args.model, collection, folder / "untrained"))
        for kind in KINDS:
            if kind not in args.only:
                continue
            model = args.model
            if kind == "splade":
                text = ("--text", collection.folder / "corpus.jsonl", "--out", folder / "adapted")
                run("adapt", model, *text, f"training.max_steps={args.adapt_steps}", f"training.device={args.device}")
                model = str(folder / "adapted")
            train(model, collection, folder / f"run-{kind}", args, "retrieval", "--kind", kind)
            row = measure(kind, str(folder / f"run-{kind}"), collection, folder / f"index-{kind}")
            rows.append(row | {"training s": read_seconds(folder / f"run-{kind}")})
            print_rows(rows[-1:])
        if "rerank" in args.only:
            train(args.model, collection, folder / "run-rerank", args, "rerank", "--num-negatives", "2")
            words = ("--rerank", str(folder / "run-rerank"), "--rerank-depth", str(RERANK_DEPTH))
            row = measure(f"BM25, {RERANK_DEPTH} reranked", BM25, collection, folder / "reranked", *words)
            rows.append(row | {"queries/s": None, "training s": read_seconds(folder / "run-rerank")})
    print_rows(rows)
    figures = {row["system"]: row["ndcg@10"] for row in rows}
    ratio = figures.get("dense", figures["dense, untrained"]) / figures["BM25"]
    if args.json is not None:
        args.json.write_text(json.dumps({"rows": rows, "ratio": ratio}, indent=2) + "\n", encoding="utf-8")
    print(f"ratio {ratio:.2f}x")


def format_figure(figure: float | None) -> str:
    if figure is None:
        return ""
    return f"{figure:.3f}" if figure <= 1 else f"{figure:,.0f}"


def print_rows(rows: list[dict[str, Any]]) -> None:
    names = ("system", "ndcg@10", "recall@100", "bytes", "queries/s", "training s")
    print("| " + " | ".join(names) + " |\n|" + "---|" * len(names))
    for row in rows:
        cells = [row.get(name) for name in names]
        shown = [one if isinstance(one, str) else format_figure(one) for one in cells]
        print("| " + " | ".join(shown) + " |", flush=True)


if __name__ == "__main__":
    main()
