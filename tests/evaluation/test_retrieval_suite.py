"""`maskwright eval MODEL retrieval FOLDER`: collections in BEIR's layout, models and BM25 on the same queries."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from maskwright.inference.pipeline import pipeline

Command = Callable[..., Any]


def write(path: Path, records: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


@pytest.fixture
def collection(tmp_path: Path, sentences: list[str]) -> Path:
    """A query is a document without its end."""
    folder = tmp_path / "collection"
    (folder / "qrels").mkdir(parents=True)
    cut = [(text[: len(text) // 2], text[len(text) // 2 :]) for text in sentences]
    write(folder / "corpus.jsonl", [{"_id": f"d{n}", "title": a, "text": b} for n, (a, b) in enumerate(cut)])
    write(folder / "queries.jsonl", [{"_id": f"q{n}", "text": text[:-6]} for n, text in enumerate(sentences[::4])])
    lines = [f"q{n}\td{4 * n}\t1" for n in range(len(sentences[::4]))]
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")
    return folder


def read(result: Any) -> dict[str, Any]:
    assert (result.code, result.err) == (0, "")
    content: dict[str, Any] = json.loads(result.out)
    return content


def test_figures_are_those_of_sorted_cosines(command: Command, trained_run: Path, collection: Path) -> None:
    content = read(command("eval", trained_run, "retrieval", collection, "--json"))
    embed = pipeline("embed", trained_run, normalize=True)
    texts, queries = (
        [json.loads(line) for line in (collection / name).read_text().splitlines()]
        for name in ("corpus.jsonl", "queries.jsonl")
    )
    # The two halves of a sentence may be one word.
    documents = [" ".join(part.strip() for part in (one["title"], one["text"])) for one in texts]
    scores = np.stack(embed([one["text"] for one in queries])) @ np.stack(embed(documents)).T
    ranks = np.asarray([(row > row[4 * n]).sum() + 1 for n, row in enumerate(scores)])
    figures = {line["measure"]: line for line in content["figures"]}
    assert set(figures) == {"ndcg@10", "recall@10", "recall@100", "mrr@10"}
    assert (content["documents"], content["queries"]) == (60, 15)
    assert figures["mrr@10"]["mean"] == pytest.approx(np.where(ranks <= 10, 1 / ranks, 0).mean())
    assert figures["ndcg@10"]["mean"] == pytest.approx(np.where(ranks <= 10, 1 / np.log2(ranks + 1), 0).mean())
    assert figures["recall@10"]["mean"] == pytest.approx((ranks <= 10).mean())
    assert figures["ndcg@10"]["low"] <= figures["ndcg@10"]["mean"] <= figures["ndcg@10"]["high"]


def test_a_model_is_compared_with_bm25_on_the_same_queries(
    command: Command, trained_run: Path, collection: Path
) -> None:
    pytest.importorskip("bm25s", reason="BM25 itself")
    content = read(command("eval", trained_run, "retrieval", collection, "--against", "bm25", "--json"))
    assert content["score"].startswith("cosines of vectors against BM25, exact")
    assert content["against"]["figures"] == read(command("eval", "bm25", "retrieval", collection, "--json"))["figures"]
    assert {line["n"] for line in content["against"]["differences"]} == {15}
    assert all(0 < line["p_value"] <= 1 for line in content["against"]["differences"])
    table = command("eval", trained_run, "retrieval", collection, "--against", "bm25").out
    assert "ndcg@10" in table
    assert "A - B" in table


def test_empty_documents_and_unanswered_queries_are_counted(
    command: Command, trained_run: Path, collection: Path
) -> None:
    with (collection / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "empty", "title": "", "text": " "}\n')
    with (collection / "qrels" / "test.tsv").open("a") as file:
        file.write("q0\td3\t0\n")
    (collection / "qrels" / "other.tsv").write_text("q0 0 d0 2\nq1 0 d3 0\n")  # TREC's
    assert read(command("eval", trained_run, "retrieval", collection, "--json"))["empty_documents"] == 1
    content = read(command("eval", trained_run, "retrieval", collection, "--split", "other", "--json"))
    assert (content["queries"], content["unanswered_queries"]) == (1, 1)


@pytest.mark.parametrize(
    ("file", "text", "complaint"),
    [
        ("qrels/test.tsv", "q0\tabsent\t1\n", "judges document 'absent' for query 'q0'"),
        ("qrels/test.tsv", "absent\td0\t1\n", "judges documents for query 'absent'"),
        ("qrels/test.tsv", "q0\td0\t1\nq1\td1\tgood\n", "test.tsv:2 has the grade 'good'"),
        ("qrels/test.tsv", "q0\td0\t0\n", "no grade above 0"),
        ("qrels/test.tsv", "", "holds no judgement"),
        ("queries.jsonl", '{"_id": "q0", "text": " "}\n', "queries.jsonl:1: query 'q0' is empty"),
        ("corpus.jsonl", '{"_id": "d0", "text": "a"}\n{"_id": "d0", "text": "b"}\n', "corpus.jsonl:2 has the id 'd0'"),
        ("corpus.jsonl", '{"_id": null, "text": "a"}\n', "corpus.jsonl:1 has the id None"),
        ("corpus.jsonl", '{"_id": "d0", "words": "a"}\n', "has none of the columns text"),
    ],
)
def test_bad_collections_are_refused_before_a_model_is_read(
    command: Command, tmp_path: Path, collection: Path, file: str, text: str, complaint: str
) -> None:
    if file != "qrels/test.tsv":
        (collection / "qrels" / "test.tsv").write_text("q0\td0\t1\n")
    (collection / file).write_text(text)
    command("eval", tmp_path / "absent", "retrieval", collection).assert_refused(complaint)


def test_wrong_options_and_folders_are_refused(command: Command, tmp_path: Path, collection: Path) -> None:
    absent = tmp_path / "absent"
    command("eval", absent, "retrieval", tmp_path).assert_refused("has no folder 'qrels'")
    command("eval", absent, "retrieval", collection, "--split", "tests").assert_refused("did you mean 'test'?")
    command("eval", absent, "retrieval", collection, "--neighbors", 3).assert_refused("--neighbors is for embeddings")
    command("eval", absent, "embeddings", collection, "--split", "dev").assert_refused("--split is for retrieval")
    command("eval", absent, "retrieval", collection, collection).assert_refused("one collection, 2 are given")
    (collection / "qrels" / "test.tsv").rename(collection / "qrels" / "a.tsv")
    (collection / "qrels" / "b.tsv").write_text("q0\td0\t1\n")
    command("eval", absent, "retrieval", collection).assert_refused("holds a, b and no test")
