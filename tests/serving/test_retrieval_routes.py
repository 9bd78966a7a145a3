"""Retrievers of every kind, and their indexes, over HTTP: what the pipeline and `search` give."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import Running, running

import maskwright as mw
from maskwright.serving.search import plan_indexes

QUERIES = ["who sees the long road?", "the quiet river"]


def test_models_of_indexes_are_served_and_named(search_server: Running) -> None:
    answer = search_server.client.get("/api/models").json()
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
def test_search_finds_what_the_command_finds(
    search_server: Running, retriever_folders: dict[str, Path], name: str
) -> None:
    expected = [[asdict(hit) for hit in hits] for hits in mw.search(retriever_folders[name], QUERIES, top_k=4)]
    found = search_server.ask("/search", query=QUERIES, index=name, top_k=4)
    assert [one["query"] for one in found] == QUERIES
    assert [_as_float32(one["hits"]) for one in found] == [_as_float32(hits) for hits in expected]
    assert search_server.ask("/search", query=QUERIES[1], index=name, top_k=4) == found[1]


def _as_float32(hits: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**hit, "score": np.float32(hit["score"])} for hit in hits]


@pytest.mark.parametrize("reranker", ["relevance", "late"])
def test_what_is_found_is_put_in_the_order_of_a_reranker(search_server: Running, reranker: str) -> None:
    first = search_server.ask("/search", query=QUERIES[0], index="words-index", top_k=8)["hits"]
    asked = {"query": QUERIES[0], "index": "words-index", "top_k": 3, "rerank": reranker, "rerank_depth": 8}
    hits = search_server.ask("/search", **asked)["hits"]
    ranked = search_server.ask("/rerank", query=QUERIES[0], texts=[hit["text"] for hit in first], model=reranker)
    assert [(hit["id"], hit["score"]) for hit in hits] == [
        (first[one["index"]]["id"], one["score"]) for one in ranked[:3]
    ]


def test_sparse_vectors_as_text_embeddings_inference_gives_them(
    search_server: Running, retriever_folders: dict[str, Path]
) -> None:
    for given, role in ({}, "document"), ({"prompt_name": "query"}, "query"):
        vectors = mw.pipeline("embed", retriever_folders["sparse"], role=role)(QUERIES)
        for found, one in zip(search_server.ask("/embed_sparse", inputs=QUERIES, **given), vectors, strict=True):
            assert [entry["index"] for entry in found] == one.tokens.tolist()
            np.testing.assert_array_equal([np.float32(entry["value"]) for entry in found], one.weights)
    shown = search_server.ask("/api/embed-sparse", inputs=QUERIES[0], role="query")
    weights = np.sort(mw.pipeline("embed", retriever_folders["sparse"], role="query")(QUERIES[0]).weights)
    np.testing.assert_array_equal(np.asarray(shown["weights"], np.float32), weights[::-1])


def test_late_interaction_gives_vectors_of_tokens_and_ranks(
    search_server: Running, retriever_folders: dict[str, Path]
) -> None:
    embed = {role: mw.pipeline("embed", retriever_folders["late"], role=role) for role in ("query", "document")}
    for given, role in ({}, "document"), ({"prompt_name": "query"}, "query"):
        found = search_server.ask("/embed_all", inputs=QUERIES, model="late", **given)
        for vectors, one in zip(found, embed[role](QUERIES), strict=True):
            np.testing.assert_array_equal(np.asarray(vectors, np.float32), one)
    texts = ["the old house.", "the cat sees a long road.", "the quiet river in the morning"]
    query = embed["query"](QUERIES[0])
    expected = [float((query @ one.T).max(1).sum()) for one in embed["document"](texts)]
    ranked = search_server.ask("/rerank", query=QUERIES[0], texts=texts, model="late")
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
    search_server: Running, path: str, body: dict[str, Any], status: int, words: str
) -> None:
    assert words in search_server.refuse(path, status, body)


def test_without_an_index_search_says_how_to_serve_one(server: Running) -> None:
    assert "--index FOLDER" in server.refuse("/search", 404, {"query": "a"})


def test_an_index_that_does_not_fit_leaves_the_others(retriever_folders: dict[str, Path], tmp_path: Path) -> None:
    indexes, sources = plan_indexes([retriever_folders["words-index"], retriever_folders["late-index"]], [])
    manifest = json.loads((retriever_folders["words-index"] / "index.json").read_text())
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


def test_the_model_of_an_index_may_have_moved(retriever_folders: dict[str, Path], tmp_path: Path) -> None:
    manifest = json.loads((retriever_folders["late-index"] / "index.json").read_text())
    (tmp_path / "index.json").write_text(json.dumps({**manifest, "model": str(tmp_path / "gone")}))
    with pytest.raises(mw.InputError, match="name its model among the models to serve"):
        plan_indexes([tmp_path], [retriever_folders["sparse"]])
    (asked,), sources = plan_indexes([tmp_path], [retriever_folders["sparse"], retriever_folders["late"]])
    assert asked.source == str(retriever_folders["late"])
    assert sources == [retriever_folders["sparse"], retriever_folders["late"]]
