"""Retrievers of every kind, and their indexes, over HTTP: what the pipeline and `search` give."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from running import Running, running
from torch import nn

import maskwright as mw
from maskwright.serving.search import plan_indexes
from maskwright.tasks.model import TaskModel
from maskwright.tasks.retrieval.colbert import LateRetrieval, build_late_head
from maskwright.tasks.retrieval.settings import RetrievalSettings
from maskwright.tasks.retrieval.splade import SpladeRetrieval, build_splade_head
from maskwright.text.tokenizer.tokenizer import Tokenizer
from tiny_bert import build_tiny_bert

QUERIES = ["who sees the long road?", "the quiet river"]
KINDS = {
    "sparse": (
        build_splade_head,
        SpladeRetrieval,
        RetrievalSettings(kind="splade", query_prompt="my old ", query_flops=1.0, document_flops=1.0),
    ),
    "late": (
        build_late_head,
        LateRetrieval,
        RetrievalSettings(kind="colbert", document_prompt="the green ", width=16, query_length=10),
    ),
}


@pytest.fixture(scope="module")
def folders(
    tokenizer: Tokenizer, model_folders: dict[str, Path], sentences: list[str], tmp_path_factory: Any
) -> dict[str, Path]:
    """Models by name, and an index by each of them as `NAME-index`; the words alone are `words`."""
    pytest.importorskip("scipy")
    pytest.importorskip("bm25s")
    parent: Path = tmp_path_factory.mktemp("retrievers")
    for name, (build_head, make_task, settings) in KINDS.items():
        encoder = build_tiny_bert(tokenizer, max_position_embeddings=64, initializer_range=0.3)
        task = make_task(settings)
        task.read_tokenizer(tokenizer)
        head = build_head(encoder, task.describe())
        for weight in head.parameters():
            if weight.ndim > 1:
                torch.manual_seed(1)
                nn.init.normal_(weight, std=0.5)
        TaskModel(encoder, head, task).save_pretrained(parent / name, tokenizer)
    corpus = parent / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"_id": f"d{n}", "text": text}) + "\n" for n, text in enumerate(sentences)))
    models = {"dense": model_folders["language"], "sparse": parent / "sparse", "late": parent / "late"}
    for name, model in [*models.items(), ("words", "bm25")]:
        mw.index(model, corpus, out=parent / f"{name}-index", store="int8" if name == "dense" else "float")
    return {path.name: path for path in parent.iterdir() if path.is_dir()}


@pytest.fixture(scope="module")
def served(folders: dict[str, Path], model_folders: dict[str, Path]) -> Iterator[Running]:
    names = ("dense-index", "sparse-index", "late-index", "words-index")
    indexes, sources = plan_indexes([folders[name] for name in names], [model_folders["relevance"]])
    with running(sources, indexes=indexes) as one:
        yield one


def test_models_of_indexes_are_served_and_named(served: Running) -> None:
    answer = served.client.get("/api/models").json()
    kinds = {one["id"]: one["kinds"] for one in answer["models"]}
    assert list(kinds) == ["relevance", "language", "sparse", "late"]
    assert (kinds["sparse"], kinds["late"]) == (["embed-sparse"], ["embed-tokens", "rerank"])
    described = [(one["id"], one["kind"], one["model"], one["ready"]) for one in answer["indexes"]]
    assert described == [
        ("dense-index", "dense", "language", True),
        ("sparse-index", "splade", "sparse", True),
        ("late-index", "colbert", "late", True),
        ("words-index", "bm25", None, True),
    ]


@pytest.mark.parametrize("name", ["dense-index", "sparse-index", "late-index", "words-index"])
def test_search_finds_what_the_command_finds(served: Running, folders: dict[str, Path], name: str) -> None:
    expected = [[asdict(hit) for hit in hits] for hits in mw.search(folders[name], QUERIES, top_k=4)]
    found = served.ask("/search", query=QUERIES, index=name, top_k=4)
    assert [one["query"] for one in found] == QUERIES
    assert [_as_float32(one["hits"]) for one in found] == [_as_float32(hits) for hits in expected]
    assert served.ask("/search", query=QUERIES[1], index=name, top_k=4) == found[1]


def _as_float32(hits: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**hit, "score": np.float32(hit["score"])} for hit in hits]


@pytest.mark.parametrize("reranker", ["relevance", "late"])
def test_what_is_found_is_put_in_the_order_of_a_reranker(served: Running, reranker: str) -> None:
    first = served.ask("/search", query=QUERIES[0], index="words-index", top_k=8)["hits"]
    asked = {"query": QUERIES[0], "index": "words-index", "top_k": 3, "rerank": reranker, "rerank_depth": 8}
    hits = served.ask("/search", **asked)["hits"]
    ranked = served.ask("/rerank", query=QUERIES[0], texts=[hit["text"] for hit in first], model=reranker)
    assert [(hit["id"], hit["score"]) for hit in hits] == [
        (first[one["index"]]["id"], one["score"]) for one in ranked[:3]
    ]


def test_sparse_vectors_as_text_embeddings_inference_gives_them(served: Running, folders: dict[str, Path]) -> None:
    for given, role in ({}, "document"), ({"prompt_name": "query"}, "query"):
        vectors = mw.pipeline("embed", folders["sparse"], role=role)(QUERIES)
        for found, one in zip(served.ask("/embed_sparse", inputs=QUERIES, **given), vectors, strict=True):
            assert [entry["index"] for entry in found] == one.tokens.tolist()
            np.testing.assert_array_equal([np.float32(entry["value"]) for entry in found], one.weights)
    shown = served.ask("/api/embed-sparse", inputs=QUERIES[0], role="query")
    weights = np.sort(mw.pipeline("embed", folders["sparse"], role="query")(QUERIES[0]).weights)
    np.testing.assert_array_equal(np.asarray(shown["weights"], np.float32), weights[::-1])


def test_late_interaction_gives_vectors_of_tokens_and_ranks(served: Running, folders: dict[str, Path]) -> None:
    embed = {role: mw.pipeline("embed", folders["late"], role=role) for role in ("query", "document")}
    for given, role in ({}, "document"), ({"prompt_name": "query"}, "query"):
        found = served.ask("/embed_all", inputs=QUERIES, model="late", **given)
        for vectors, one in zip(found, embed[role](QUERIES), strict=True):
            np.testing.assert_array_equal(np.asarray(vectors, np.float32), one)
    texts = ["the old house.", "the cat sees a long road.", "the quiet river in the morning"]
    query = embed["query"](QUERIES[0])
    expected = [float((query @ one.T).max(1).sum()) for one in embed["document"](texts)]
    ranked = served.ask("/rerank", query=QUERIES[0], texts=texts, model="late")
    assert {one["index"]: one["score"] for one in ranked} == dict(enumerate(expected))
    assert [one["score"] for one in ranked] == sorted(expected, reverse=True)


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/search", {"query": "a", "index": "wordz-index"}, 404, "did you mean 'words-index'"),
        ("/search", {"query": " "}, 422, "query 1 is empty"),
        ("/search", {"query": "a", "top_k": 0}, 422, "'top_k'"),
        ("/search", {"query": ["a"] * 50, "top_k": 900}, 422, "asks for 45,000 documents"),
        ("/search", {"query": "a", "rerank": "language"}, 422, "'language' has no rerank"),
        ("/search", {"query": "a", "index": "../words-index"}, 404, "there is no index"),
        ("/v1/embeddings", {"input": "a", "model": "sparse"}, 422, "'sparse' has no embed; it has embed-sparse"),
        ("/embed_sparse", {"inputs": "a", "model": "late"}, 422, "'late' has no embed-sparse"),
        ("/embed_sparse", {"inputs": [[5, 6]]}, 422, "send texts"),
        ("/embed_sparse", {"inputs": "a", "prompt_name": "passage"}, 422, "prompt_name"),
    ],
)
def test_what_cannot_be_answered_is_said(
    served: Running, path: str, body: dict[str, Any], status: int, words: str
) -> None:
    assert words in served.refuse(path, status, body)


def test_without_an_index_search_says_how_to_serve_one(server: Running) -> None:
    assert "--index FOLDER" in server.refuse("/search", 404, {"query": "a"})


def test_an_index_that_does_not_fit_leaves_the_others(folders: dict[str, Path], tmp_path: Path) -> None:
    indexes, sources = plan_indexes([folders["words-index"], folders["late-index"]], [])
    manifest = json.loads((folders["words-index"] / "index.json").read_text())
    (tmp_path / "index.json").write_text(json.dumps(manifest))
    broken, _ = plan_indexes([tmp_path], [])
    with running(sources, indexes=[*broken, *indexes]) as one:
        failed = one.client.get("/ready").json()["failed"]
        assert list(failed) == [tmp_path.name]
        assert "index again" in failed[tmp_path.name]
        assert (
            one.ask("/search", query=QUERIES[1])["hits"]
            == one.ask("/search", query=QUERIES[1], index="words-index")["hits"]
        )
        assert "index again" in one.refuse("/search", 503, {"query": "a", "index": tmp_path.name})


def test_the_model_of_an_index_may_have_moved(folders: dict[str, Path], tmp_path: Path) -> None:
    manifest = json.loads((folders["late-index"] / "index.json").read_text())
    (tmp_path / "index.json").write_text(json.dumps({**manifest, "model": str(tmp_path / "gone")}))
    with pytest.raises(mw.InputError, match="name its model among the models to serve"):
        plan_indexes([tmp_path], [folders["sparse"]])
    (asked,), sources = plan_indexes([tmp_path], [folders["sparse"], folders["late"]])
    assert asked.source == str(folders["late"])
    assert sources == [folders["sparse"], folders["late"]]
