"""Sparse retrievers from an index to its hits: windows, parts, and searches beside plain products."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import maskwright as mw
from maskwright.inference.search.inverted import find_sparse, score_sparse, store_sparse
from maskwright.inference.sparse import SparseVector
from maskwright.runs.finetune.finetune import finetune
from maskwright.runs.search import index as index_module
from maskwright.tasks.config import TaskConfig
from maskwright.tasks.heads import TEXT_ROLES

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def splade_run(trained_run: Path, tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> Path:
    pytest.importorskip("scipy")
    folder = tmp_path_factory.mktemp("splade")
    lines = [json.dumps({"query": one[: len(one) // 2], "positive": one}) for one in sentences]
    (folder / "train.jsonl").write_text("\n".join(lines))
    config = TaskConfig(
        task="retrieval", kind="splade", model=str(trained_run), train=str(folder / "train.jsonl"), epochs=1
    )
    settings = ["training.device=cpu", "training.precision=fp32"]
    finetune(config, folder / "run", settings=settings, console=Console(quiet=True))
    return folder / "run"


@pytest.fixture
def corpus(tmp_path: Path, sentences: list[str]) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"_id": f"d{n}", "text": text}) + "\n" for n, text in enumerate(sentences)))
    return path


def make_vectors(number: int, seed: int) -> list[SparseVector]:
    generator = np.random.default_rng(seed)
    rows = [np.unique(generator.integers(0, 50, generator.integers(0, 12))) for _ in range(number)]
    return [SparseVector(row.astype(np.int32), generator.random(len(row), np.float32) + 0.1) for row in rows]


def spread(vectors: Sequence[SparseVector]) -> np.ndarray[Any, Any]:
    dense = np.zeros((len(vectors), 60), np.float32)
    for row, one in zip(dense, vectors, strict=True):
        row[one.tokens] = one.weights
    return dense


def test_products_of_parts_are_those_of_whole_vectors() -> None:
    pytest.importorskip("scipy")
    queries = [*make_vectors(7, seed=0), SparseVector(np.array([3, 59], np.int32), np.ones(2, np.float32))]
    documents = make_vectors(40, seed=1)
    expected = spread(queries) @ spread(documents).T
    arrays = store_sparse(documents)
    assert score_sparse(queries, arrays, 40) == pytest.approx(expected, rel=1e-5)
    parts = [(store_sparse(documents[start : start + 15]), len(documents[start : start + 15])) for start in (0, 15, 30)]
    found = find_sparse(queries, parts, 5)
    assert found.scores == pytest.approx(-np.sort(-expected, axis=1)[:, :5], rel=1e-5)
    assert np.take_along_axis(expected, found.places, 1) == pytest.approx(found.scores, rel=1e-5)


def test_a_long_text_has_the_largest_weights_of_its_windows(splade_run: Path, sentences: list[str]) -> None:
    text = " ".join(sentences[:20])
    pipe = mw.pipeline("embed", splade_run)
    (prepared,) = pipe.kind.prepare([text], lambda place: "text")
    assert len(prepared.samples) > 2
    kind: Any = pipe.kind
    with torch.no_grad():
        logits = torch.cat([kind.model(torch.tensor([list(one.ids)])).logits for one in prepared.samples])
    expected = logits.amax(0).numpy()
    answer = pipe(text)
    assert answer.tokens.tolist() == expected.nonzero()[0].tolist()
    assert answer.weights == pytest.approx(expected[answer.tokens], rel=1e-4, abs=1e-5)


def test_search_finds_what_plain_products_find(
    splade_run: Path, corpus: Path, tmp_path: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "_CPU_PART", 16)
    folder = mw.index(splade_run, corpus, out=tmp_path / "idx")
    pipes = {role: mw.pipeline("embed", splade_run, role=role) for role in TEXT_ROLES}
    texts = ["the teacher remembers", "one red bird"]
    size = 1 + max(int(one.tokens.max()) for one in pipes["document"](sentences))
    dense = [np.zeros((len(rows), max(size, 60)), np.float32) for rows in (texts, sentences)]
    for matrix, rows, role in zip(dense, (texts, sentences), ("query", "document"), strict=True):
        for row, one in zip(matrix, pipes[role](list(rows)), strict=True):
            row[one.tokens] = one.weights
    scores = dense[0] @ dense[1].T
    for hits, row in zip(mw.search(folder, texts, top_k=5), scores, strict=True):
        assert [hit.score for hit in hits] == pytest.approx(-np.sort(-row)[:5], rel=1e-4)
        assert [row[int(hit.id[1:])] for hit in hits] == pytest.approx([hit.score for hit in hits], rel=1e-4)
    more = tmp_path / "more.txt"
    more.write_text("every student sees one red bird in the quiet river.\n")
    mw.index(splade_run, more, out=folder, append=True)
    assert len(mw.search(folder, "bird", top_k=100)[0]) == len(sentences) + 1


def test_eval_and_mine_take_sparse_retrievers(
    command: Command, splade_run: Path, corpus: Path, tmp_path: Path, sentences: list[str]
) -> None:
    folder = corpus.parent
    (folder / "qrels").mkdir()
    queries = [text[: len(text) // 2] for text in sentences[::6]]
    (folder / "queries.jsonl").write_text(
        "".join(json.dumps({"_id": f"q{n}", "text": text}) + "\n" for n, text in enumerate(queries))
    )
    lines = [f"q{n}\td{6 * n}\t1" for n in range(len(queries))]
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")
    content = json.loads(command("eval", splade_run, "retrieval", folder, "--json").out)
    assert content["score"].startswith("products of sparse vectors, exact")
    found = mw.search(mw.index(splade_run, folder, out=tmp_path / "idx"), queries, top_k=len(sentences))
    ranks = [next(rank for rank, hit in enumerate(hits, 1) if hit.id == f"d{6 * n}") for n, hits in enumerate(found)]
    mean = next(line["mean"] for line in content["figures"] if line["measure"] == "mrr@10")
    assert mean == pytest.approx(np.mean([1 / rank if rank <= 10 else 0 for rank in ranks]))
    assert command("mine", splade_run, folder / "qrels" / "test.tsv", "--out", tmp_path / "hard.jsonl").code == 0
    first = json.loads((tmp_path / "hard.jsonl").read_text().splitlines()[0])
    scores = {hit.text: hit.score for hit in found[0]}
    assert first["scores"] == pytest.approx(
        [scores[text] for text in (first["positive"], *first["negatives"])], rel=1e-3
    )


def test_what_sparse_retrievers_have_no_use_for_is_refused(
    command: Command, splade_run: Path, trained_run: Path, corpus: Path, tmp_path: Path
) -> None:
    out = tmp_path / "idx"
    command("index", splade_run, corpus, "--out", out, "--dims", 9).assert_refused("a sparse retriever has none")
    command("predict", "similarity", splade_run, "a text", "b").assert_refused("is of a sparse retriever")
    assert command("index", splade_run, corpus, "--out", out).code == 0
    command("search", out, "the cat", "--model", trained_run).assert_refused("is another model now")
    part = next((out / "parts").iterdir())
    np.save(part / "documents.npy", np.full_like(np.load(part / "documents.npy"), 1_000))
    command("search", out, "the cat").assert_refused("is damaged: its arrays are not of its documents")


def test_predict_gives_the_weights_of_tokens(
    command: Command, splade_run: Path, corpus: Path, tmp_path: Path, sentences: list[str]
) -> None:
    from pyarrow import parquet

    pipe = mw.pipeline("embed", splade_run)
    expected = pipe(list(sentences))
    out = tmp_path / "weights.parquet"
    assert command("predict", "embed", splade_run, corpus, "--out", out).code == 0
    for found, one in zip(parquet.read_table(out).to_pylist(), expected, strict=True):
        weights = dict(zip(found["tokens"], found["weights"], strict=True))
        named = [pipe.kind.tokenizer.token(token) for token in one.tokens]
        assert weights == dict(zip(named, one.weights.tolist(), strict=True))
        assert found["weights"] == sorted(found["weights"], reverse=True)
    command("embed", splade_run, corpus, "--out", tmp_path / "w.npz").assert_refused("these answers are none")
    command("embed", splade_run, "a text", "--pooling", "cls").assert_refused("this model gives weights of tokens")
