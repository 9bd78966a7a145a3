"""Retrievers of late interaction from an index to its hits, beside plain best matches."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import maskwright as mw
from maskwright.inference.search import late_store
from maskwright.inference.search.late_store import find_tokens, score_tokens, store_tokens
from maskwright.runs.finetune.finetune import finetune
from maskwright.runs.search import index as index_module
from maskwright.tasks.config import TaskConfig
from maskwright.tasks.heads import TEXT_ROLES

Command = Callable[..., Any]
Floats = np.ndarray[Any, np.dtype[np.float32]]


@pytest.fixture(scope="module")
def late_run(trained_run: Path, tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> Path:
    folder = tmp_path_factory.mktemp("late")
    lines = [json.dumps({"query": one[: len(one) // 2], "positive": one}) for one in sentences]
    (folder / "train.jsonl").write_text("\n".join(lines))
    values = {"kind": "colbert", "width": 16, "query_length": 10, "epochs": 1}
    config = TaskConfig(task="retrieval", model=str(trained_run), train=str(folder / "train.jsonl"), **values)
    settings = ["training.device=cpu", "training.precision=fp32"]
    finetune(config, folder / "run", settings=settings, console=Console(quiet=True))
    return folder / "run"


@pytest.fixture
def corpus(tmp_path: Path, sentences: list[str]) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"_id": f"d{n}", "text": text}) + "\n" for n, text in enumerate(sentences)))
    return path


def make_texts(number: int, seed: int) -> list[Floats]:
    generator = np.random.default_rng(seed)
    texts = [generator.normal(size=(generator.integers(1, 9), 8)).astype(np.float32) for _ in range(number)]
    return [one / np.linalg.norm(one, axis=1, keepdims=True) for one in texts]


def match_all(queries: list[Floats], documents: list[Floats]) -> Floats:
    return np.asarray([[(query @ one.T).max(1).sum() for one in documents] for query in queries], np.float32)


@pytest.mark.parametrize("store", ["float", "int8"])
def test_best_matches_of_parts_are_those_of_plain_products(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_store, "_PRODUCTS", 300)  # documents in several blocks
    queries, documents = make_texts(5, seed=0), make_texts(40, seed=1)
    expected = match_all(queries, documents)
    longest = max(map(len, queries))
    # what rounding a number costs, in as many products as a query has tokens, of vectors of length 1
    tolerance = longest * (8**0.5 / 254 if store == "int8" else 8**0.5 * 2**-11)
    assert np.abs(score_tokens(queries, store_tokens(documents, store)) - expected).max() <= tolerance
    found = find_tokens(queries, [store_tokens(documents[start : start + 15], store) for start in (0, 15, 30)], 6)
    assert np.abs(found.scores + np.sort(-expected, axis=1)[:, :6]).max() <= 2 * tolerance
    assert np.abs(np.take_along_axis(expected, found.places, 1) - found.scores).max() <= tolerance


def test_search_eval_and_mine_find_what_plain_best_matches_find(
    command: Command,
    late_run: Path,
    corpus: Path,
    tmp_path: Path,
    sentences: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(index_module, "_CPU_PART", 16)
    pipes = {role: mw.pipeline("embed", late_run, role=role) for role in TEXT_ROLES}
    queries = [text[: len(text) // 2] for text in sentences[::6]]
    scores = match_all(pipes["query"](queries), pipes["document"](list(sentences)))
    folder = mw.index(late_run, corpus, out=tmp_path / "idx")
    tolerance = 10 * 16**0.5 * 2**-10
    for hits, row in zip(mw.search(folder, queries, top_k=5), scores, strict=True):
        assert [hit.score for hit in hits] == pytest.approx(-np.sort(-row)[:5], abs=tolerance)
        assert [row[int(hit.id[1:])] for hit in hits] == pytest.approx([hit.score for hit in hits], abs=tolerance)
    collection = corpus.parent
    (collection / "qrels").mkdir()
    lines = [json.dumps({"_id": f"q{n}", "text": text}) for n, text in enumerate(queries)]
    (collection / "queries.jsonl").write_text("\n".join(lines))
    lines = [f"q{n}\td{6 * n}\t1" for n in range(len(queries))]
    (collection / "qrels" / "test.tsv").write_text("\n".join(lines))
    content = json.loads(command("eval", late_run, "retrieval", collection, "--json").out)
    assert content["score"].startswith("best matches of tokens, exact")
    found = mw.search(folder, queries, top_k=len(sentences))
    ranks = [next(rank for rank, hit in enumerate(hits, 1) if hit.id == f"d{6 * n}") for n, hits in enumerate(found)]
    mean = next(line["mean"] for line in content["figures"] if line["measure"] == "mrr@10")
    assert mean == pytest.approx(np.mean([1 / rank if rank <= 10 else 0 for rank in ranks]))
    assert command("mine", late_run, collection / "qrels" / "test.tsv", "--out", tmp_path / "hard.jsonl").code == 0
    mined = json.loads((tmp_path / "hard.jsonl").read_text().splitlines()[0])
    own = {text: scores[0][place] for place, text in enumerate(sentences)}
    expected = [own[text] for text in (mined["positive"], *mined["negatives"])]
    assert mined["scores"] == pytest.approx(expected, abs=tolerance)


def test_tokens_of_all_windows_of_a_long_document_are_kept(late_run: Path, sentences: list[str]) -> None:
    pipe = mw.pipeline("embed", late_run)
    text = " ".join(sentences[:20])
    (prepared,) = pipe.kind.prepare([text], lambda place: "text")
    assert len(prepared.samples) > 2
    assert pipe(text).shape[0] > max(len(one.ids) for one in prepared.samples)
    assert np.linalg.norm(pipe(text), axis=1) == pytest.approx(1, abs=1e-5)


def test_what_late_interaction_has_no_use_for_is_refused(
    command: Command, late_run: Path, corpus: Path, tmp_path: Path
) -> None:
    out = tmp_path / "idx"
    command("index", late_run, corpus, "--out", out, "--dims", 9).assert_refused("--dims is for one vector of a text")
    command("index", late_run, corpus, "--out", out, "--store", "binary").assert_refused("use float or int8")
    command("predict", "similarity", late_run, "a text", "b").assert_refused("is of a retriever of late interaction")
    assert command("index", late_run, corpus, "--out", out, "--store", "int8").code == 0
    assert len(mw.search(out, "the cat", top_k=3)[0]) == 3
    part = next((out / "parts").iterdir())
    np.save(part / "bounds.npy", np.load(part / "bounds.npy")[::-1])
    command("search", out, "the cat").assert_refused("is damaged: its arrays are not of its documents")


def test_predict_gives_the_vectors_of_tokens(
    command: Command, late_run: Path, corpus: Path, tmp_path: Path, sentences: list[str]
) -> None:
    expected = mw.pipeline("embed", late_run)(list(sentences))
    out = tmp_path / "vectors.npz"
    assert command("predict", "embed", late_run, corpus, "--out", out).code == 0
    with np.load(out) as found:
        assert found["lengths"].tolist() == [len(one) for one in expected]
        np.testing.assert_array_equal(found["embeddings"], np.concatenate(expected))
    printed = json.loads(command("embed", late_run, "a quiet river", "--role", "query").out)
    query = mw.pipeline("embed", late_run, role="query")("a quiet river")
    np.testing.assert_array_equal(np.asarray(printed["embedding"], np.float32), query)
    assert len(query) == 10  # filled up to the query's length
