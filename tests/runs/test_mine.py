"""`maskwright mine`: which documents are taken for hard negatives, and that training reads them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import maskwright as mw
from maskwright.inference.pipeline import pipeline
from maskwright.tasks.config import build_task_config
from maskwright.tasks.retrieval.examples import read_retrieval

Command = Callable[..., Any]


@pytest.fixture
def pairs(tmp_path: Path, sentences: list[str]) -> Path:
    """The last document differs from the first in case alone."""
    path = tmp_path / "pairs.jsonl"
    records = [{"query": text[:-8], "positive": text} for text in sentences[:20]]
    records += [{"query": "something else", "positive": sentences[0].upper()}]
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def check_scores(model: Path, records: list[dict[str, Any]]) -> None:
    embed = pipeline("embed", model, normalize=True)
    for one in records:
        cosines = np.stack(embed([one["positive"], *one["negatives"]])) @ embed(one["query"])
        assert one["scores"] == pytest.approx(cosines.tolist(), abs=1e-5)


def test_negatives_are_the_best_documents_that_do_not_answer(
    command: Command, trained_run: Path, pairs: Path, tmp_path: Path, sentences: list[str]
) -> None:
    result = command("mine", trained_run, pairs, "--out", tmp_path / "hard.jsonl", "--num-negatives", 3)
    assert (result.code, result.err) == (0, "")
    assert "hard.jsonl: 21 examples of 21 queries, 3.0 hard negatives each" in result.out
    records = read(tmp_path / "hard.jsonl")
    check_scores(trained_run, records)
    embed = pipeline("embed", trained_run, normalize=True)
    documents = [one["positive"] for one in records]
    vectors = np.stack(embed(documents))
    for number, one in enumerate(records):
        ranked = [documents[place] for place in np.argsort(-(vectors @ embed(one["query"])), kind="stable")]
        folded = list(dict.fromkeys(text.lower() for text in ranked if text.lower() != documents[number].lower()))
        assert [text.lower() for text in one["negatives"]] == folded[:3]


@pytest.mark.parametrize(
    ("options", "find_limit"),
    [(("--margin", 0.02), lambda score: score - 0.02), (("--relative-margin", 0.05), lambda score: 0.95 * score)],
)
def test_negatives_keep_the_margin(
    command: Command, trained_run: Path, pairs: Path, tmp_path: Path, options: tuple[Any, ...], find_limit: Any
) -> None:
    result = command("mine", trained_run, pairs, "--out", tmp_path / "hard.jsonl", *options)
    assert result.code == 0
    records = read(tmp_path / "hard.jsonl")
    assert all(max(one["scores"][1:]) <= find_limit(one["scores"][0]) + 1e-6 for one in records)
    plain = mw.mine(trained_run, pairs, out=tmp_path / "plain.jsonl")
    assert any(max(one["scores"][1:]) > find_limit(one["scores"][0]) for one in read(plain))


def test_the_first_documents_can_be_skipped(
    trained_run: Path, pairs: Path, tmp_path: Path, sentences: list[str]
) -> None:
    """But for the text that two documents have, of which one may be skipped."""

    def list_negatives(skip: int) -> list[list[str]]:
        records = read(mw.mine(trained_run, pairs, out=tmp_path / f"{skip}.jsonl", num_negatives=21, skip=skip))
        return [[text for text in one["negatives"] if text.lower() != sentences[0].lower()] for one in records]

    for every, later in zip(list_negatives(0), list_negatives(9), strict=True):
        assert later == every[len(every) - len(later) :]
        assert 9 - 3 <= len(every) - len(later) <= 9  # the answer and the two may be among those that are skipped


def test_a_collection_is_mined_for_its_training_queries_and_trained_on(
    trained_run: Path, tmp_path: Path, sentences: list[str]
) -> None:
    pytest.importorskip("bm25s", reason="BM25 itself")
    folder = tmp_path / "collection"
    (folder / "qrels").mkdir(parents=True)
    write = [json.dumps({"_id": f"d{n}", "text": text}) for n, text in enumerate([*sentences[:20], ""])]
    (folder / "corpus.jsonl").write_text("\n".join(write))
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "the cat sees"}\n{"_id": "r", "text": "a house"}\n')
    (folder / "qrels" / "train.tsv").write_text("q\td0\t1\nq\td1\t1\n")
    (folder / "qrels" / "test.tsv").write_text("r\td0\t1\n")
    records = read(mw.mine("bm25", folder, out=tmp_path / "hard.jsonl"))
    assert [one["query"] for one in records] == ["the cat sees"] * 2
    assert [one["positive"] for one in records] == sentences[:2]
    assert not {*records[0]["negatives"]} & {*sentences[:2], ""}
    assert records[0]["scores"][1:] == sorted(records[0]["scores"][1:], reverse=True)
    path = tmp_path / "hard.jsonl"
    config = build_task_config({"task": "retrieval", "model": "any", "train": str(path)})
    assert read_retrieval(path, config).num_negatives == 4


def test_wrong_words_are_refused(command: Command, trained_run: Path, pairs: Path, tmp_path: Path) -> None:
    out = tmp_path / "hard.jsonl"
    command("mine", trained_run, pairs, "--out", tmp_path / "hard.csv").assert_refused("is no .jsonl file")
    command("mine", trained_run, pairs, "--out", out, "--skip", 100).assert_refused("which leaves none")
    command("mine", trained_run, pairs, "--out", out, "--margin", 3).assert_refused("under these margins", "loosen")
    assert not out.exists()
    out.write_text("mine")
    command("mine", trained_run, pairs, "--out", out).assert_refused("exists; choose another")
    assert out.read_text() == "mine"
