"""`maskwright index` and `maskwright search`: exact, in every store, after kills and additions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import maskwright as mw
from maskwright.inference.pipeline import pipeline
from maskwright.inference.search.index_folder import OpenIndex, read_manifest
from maskwright.inference.search.quantized import find_stored, score_bits, score_bytes, store_vectors, to_bytes
from maskwright.runs.search import index as index_module

Command = Callable[..., Any]


@pytest.fixture
def corpus(tmp_path: Path, sentences: list[str]) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"_id": f"d{n}", "text": text}) + "\n" for n, text in enumerate(sentences)))
    return path


def normalize(rng: np.random.Generator, *shape: int) -> np.ndarray:
    vectors = rng.normal(size=shape).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def test_bytes_are_within_half_a_step_of_the_numbers() -> None:
    rng = np.random.default_rng(0)
    vectors, queries = normalize(rng, 40, 24), normalize(rng, 5, 24)
    vectors[3] = 0
    steps = np.abs(vectors).max(1) / 127
    bound = 0.5 * steps * np.abs(queries).sum(1, keepdims=True) + 1e-6
    assert (np.abs(score_bytes(queries, to_bytes(vectors)) - queries @ vectors.T) <= bound).all()


@pytest.mark.parametrize("width", [24, 64, 100])
def test_bits_count_equal_signs(width: int) -> None:
    rng = np.random.default_rng(width)
    vectors, queries = normalize(rng, 40, width), normalize(rng, 5, width)
    expected = np.where(queries > 0, 1, -1) @ np.where(vectors > 0, 1, -1).T
    assert score_bits(queries, store_vectors(vectors, "binary")["bits"]).tolist() == expected.tolist()


def test_binary_finds_what_bytes_find_where_all_are_candidates() -> None:
    rng = np.random.default_rng(1)
    vectors, queries = normalize(rng, 60, 32), normalize(rng, 4, 32)
    found = {
        store: find_stored(queries, [store_vectors(vectors[:25], store), store_vectors(vectors[25:], store)], store, 6)
        for store in ("float", "int8", "binary")
    }
    exact = np.argsort(-(queries @ vectors.T), axis=1, kind="stable")[:, :6]
    assert found["float"].places.tolist() == exact.tolist()
    assert found["binary"].places.tolist() == found["int8"].places.tolist()
    assert found["binary"].scores == pytest.approx(found["int8"].scores, abs=1e-6)


def test_a_query_finds_its_nearest_documents(
    command: Command, trained_run: Path, corpus: Path, tmp_path: Path, sentences: list[str]
) -> None:
    result = command("index", trained_run, corpus, "--out", tmp_path / "idx")
    assert (result.code, result.err) == (0, "")
    embed = pipeline("embed", trained_run, normalize=True)
    query = "the cat carries a red bird"
    scores = np.stack(embed(sentences)) @ embed(query)
    order = np.argsort(-scores)[:3]
    (hits,) = mw.search(tmp_path / "idx", query, top_k=3)
    assert [hit.id for hit in hits] == [f"d{place}" for place in order]
    assert [hit.text for hit in hits] == [sentences[place] for place in order]
    assert [hit.score for hit in hits] == pytest.approx(scores[order].tolist(), abs=1e-5)
    lines = command("search", tmp_path / "idx", query, "--top-k", 3).out.splitlines()
    assert [line.split()[:3] for line in lines] == [
        [str(rank), f"{hit.score:.4f}", hit.id] for rank, hit in enumerate(hits, start=1)
    ]
    queries = tmp_path / "queries.jsonl"
    queries.write_text(json.dumps({"_id": "q", "text": query}) + "\n")
    (line,) = command("search", tmp_path / "idx", "--queries", queries, "--top-k", 1).out.splitlines()
    found = json.loads(line)
    assert (found["_id"], [hit["id"] for hit in found["hits"]]) == ("q", [hits[0].id])


@pytest.mark.parametrize("store", ["float", "int8", "binary"])
def test_stores_take_fewer_bytes_and_find_the_document_itself(
    trained_run: Path, corpus: Path, tmp_path: Path, sentences: list[str], store: str
) -> None:
    opened = OpenIndex.open(mw.index(trained_run, corpus, out=tmp_path / "idx", store=store, dims=16))
    sizes = {"float": {"vectors": 64}, "int8": {"vectors": 20}, "binary": {"vectors": 20, "bits": 2}}
    found = {name: array.nbytes // len(array) for name, array in opened.parts[0].arrays.items()}
    assert found == sizes[store]
    hits = mw.search(tmp_path / "idx", sentences[::10], top_k=1)
    assert [one[0].text for one in hits] == sentences[::10]


def test_a_killed_command_goes_on_after_its_last_part(
    trained_run: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = OpenIndex.open(mw.index(trained_run, corpus, out=tmp_path / "whole"))
    monkeypatch.setattr(index_module, "_CPU_PART", 16)
    calls, write = [], index_module.write_part

    def die(*given: Any) -> None:
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(write(*given))

    monkeypatch.setattr(index_module, "write_part", die)
    with pytest.raises(KeyboardInterrupt):
        mw.index(trained_run, corpus, out=tmp_path / "idx")
    with pytest.raises(mw.InputError, match="is not finished; repeat the command"):
        mw.search(tmp_path / "idx", "the cat")
    with pytest.raises(mw.InputError, match=r"is not finished: .*corpus.jsonl is not all in it"):
        mw.index(trained_run, _copy(corpus, "other.jsonl", "one more\n"), out=tmp_path / "idx")
    monkeypatch.setattr(index_module, "write_part", write)
    capsys.readouterr()
    resumed = OpenIndex.open(mw.index(trained_run, corpus, out=tmp_path / "idx"))
    assert "going on after 32 documents" in capsys.readouterr().out
    assert [part.num_documents for part in resumed.parts] == [16, 16, 16, 12]
    vectors = np.concatenate([part.arrays["vectors"] for part in resumed.parts])
    assert vectors == pytest.approx(whole.parts[0].arrays["vectors"], abs=1e-6)
    documents = [document for part in resumed.parts for document in part.read_documents()]
    assert documents == list(whole.parts[0].read_documents())


def _copy(corpus: Path, name: str, more: str) -> Path:
    path = corpus.with_name(name)
    path.write_text(corpus.read_text() + json.dumps({"_id": "new", "text": more.strip()}) + "\n")
    return path


def test_documents_are_added_once(trained_run: Path, corpus: Path, tmp_path: Path, sentences: list[str]) -> None:
    mw.index(trained_run, corpus, out=tmp_path / "idx")
    more = tmp_path / "more.txt"
    more.write_text("\nevery student sees one red bird in the quiet river.\n")  # a blank line is no document
    opened = OpenIndex.open(mw.index(trained_run, more, out=tmp_path / "idx", append=True))
    assert opened.manifest.num_documents == 61
    (hits,) = mw.search(tmp_path / "idx", "every student sees one red bird in the quiet river.", top_k=1)
    assert (hits[0].id, hits[0].score) == ("61", pytest.approx(1, abs=1e-5))
    with pytest.raises(mw.InputError, match=r"holds .*more.txt already"):
        mw.index(trained_run, more, out=tmp_path / "idx", append=True)
    assert [source.num_documents for source in read_manifest(tmp_path / "idx").sources] == [60, 1]


def test_bm25_needs_no_model_and_grows_too(corpus: Path, tmp_path: Path) -> None:
    pytest.importorskip("bm25s", reason="BM25 itself")
    mw.index("bm25", corpus, out=tmp_path / "idx")
    (hits,) = mw.search(tmp_path / "idx", "the teacher remembers the house with great care", top_k=2)
    assert all("teacher remembers" in hit.text and "house" in hit.text for hit in hits[:1])
    more = tmp_path / "more.jsonl"
    more.write_text(json.dumps({"id": "new", "title": "Museum", "text": "opened in 1901"}) + "\n")
    mw.index("bm25", more, out=tmp_path / "idx", append=True)
    (hits,) = mw.search(tmp_path / "idx", "when was the museum opened?", top_k=1)
    assert (hits[0].id, hits[0].text) == ("new", "Museum opened in 1901")


def test_another_model_is_told_by_its_weights(
    command: Command, trained_run: Path, corpus: Path, tmp_path: Path
) -> None:
    earlier = trained_run / "checkpoints" / "step-10"
    out = tmp_path / "idx"
    assert command("index", trained_run, corpus, "--out", out).code == 0
    command("search", out, "the cat", "--model", earlier).assert_refused("is another model now")
    command("index", earlier, corpus, "--out", out).assert_refused("is an index by", "is another model")
    command("index", trained_run, corpus, "--out", out, "--store", "int8").assert_refused("stores vectors as float")
    command("index", trained_run, corpus, "--out", out).assert_refused("already")
    other = _copy(corpus, "other.jsonl", "one more")
    command("index", trained_run, other, "--out", out).assert_refused("add --append")
    assert command("index", earlier, other, "--out", out, "--overwrite").code == 0
    assert mw.search(out, "one more", top_k=1, model=earlier)[0][0].id == "new"


def test_wrong_words_are_refused(command: Command, trained_run: Path, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "idx"
    command("index", trained_run, corpus, "--out", out, "--store", "floats").assert_refused("did you mean 'float'?")
    command("index", trained_run, corpus, "--out", out, "--dims", 99).assert_refused("have 32 numbers; lower it")
    command("index", trained_run, corpus, "--out", out, "--append").assert_refused("no index to append to")
    command("index", "bm25", corpus, "--out", out, "--dims", 9).assert_refused("are for vectors")
    command("index", trained_run, tmp_path / "absent.jsonl", "--out", out).assert_refused("absent.jsonl")
    assert not out.exists()
    command("index", trained_run, corpus, "--out", trained_run, "--overwrite").assert_refused("is no index")
    command("search", out, "the cat").assert_refused("holds no index.json")
    command("search", out).assert_refused("give a query")
    assert command("index", trained_run, corpus, "--out", out).code == 0
    command("search", out, " ").assert_refused("query 1 is empty")
    (next((out / "parts").iterdir()) / "vectors.npy").write_bytes(b"damaged")
    command("search", out, "the cat").assert_refused("vectors.npy cannot be read")
