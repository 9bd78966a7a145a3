"""What retrieval learns from: tables of pairs, triples and lists, and collections."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from task_lab import write_lines

from maskwright.errors import InputError
from maskwright.tasks.config import TaskConfig, build_task_config
from maskwright.tasks.retrieval.examples import RetrievalExample, read_retrieval


def make_config(path: Path, **values: Any) -> TaskConfig:
    return build_task_config({"task": "retrieval", "model": "any", "train": str(path), **values})


def read(path: Path, learns_scores: bool = False, **values: Any) -> list[RetrievalExample]:
    return read_retrieval(path, make_config(path, **values), learns_scores).examples


@pytest.mark.parametrize(
    ("record", "texts"),
    [
        ({"query": "q", "positive": "p"}, [("q", "p")]),
        ({"anchor": "q", "positive": "p", "negative": "n"}, [("q", "p", "n")]),
        ({"query": "q", "pos": ["p", "r"], "neg": ["n", "m"]}, [("q", "p", "n", "m"), ("q", "r", "n", "m")]),
        ({"question": "q", "answer": "p", "negative_1": "n", "negative_2": "m"}, [("q", "p", "n", "m")]),
        ({"sentence1": "q", "sentence2": "p"}, [("q", "p")]),
    ],
)
def test_pairs_triples_and_lists_are_read(tmp_path: Path, record: dict[str, Any], texts: list[tuple[str, ...]]) -> None:
    path = write_lines(tmp_path / "train.jsonl", [record])
    assert [one.texts for one in read(path)] == texts


def test_missing_negatives_are_documents_of_other_queries(tmp_path: Path) -> None:
    records = [{"query": f"q{n}", "pos": [f"p{n}"], "neg": [f"n{n}{k}" for k in range(n)]} for n in range(7)]
    path = write_lines(tmp_path / "train.jsonl", records)
    file = read_retrieval(path, make_config(path))
    assert file.num_negatives == 4
    assert {len(one.texts) for one in file.examples} == {6}
    assert file.num_drawn == 4 + 3 + 2 + 1
    assert "4 hard negatives each (10 of them drawn from other queries)" in file.describe()
    drawn = {text for one in file.examples for text in one.texts[2:] if not text.startswith("n")}
    assert drawn <= {f"p{n}" for n in range(7)}
    for wanted, size in ((0, 2), (2, 4), (9, 8)):
        assert {len(one.texts) for one in read(path, num_negatives=wanted)} == {size}


def test_scores_stay_with_their_documents(tmp_path: Path) -> None:
    records = [
        {"query": "q", "positive": "p", "negatives": ["n", "m"], "scores": [3, 2, 1]},
        {"query": "r", "positive": "s", "negatives": ["o"], "scores": [1.5, 0]},
    ]
    examples = read(write_lines(tmp_path / "train.jsonl", records), learns_scores=True, loss="kl")
    assert [(one.texts, one.scores) for one in examples] == [(("q", "p", "n"), (3, 2)), (("r", "s", "o"), (1.5, 0))]
    published = [{"query": "q", "pos": ["p"], "neg": ["n"], "pos_scores": [3], "neg_scores": [1]}]
    assert read(write_lines(tmp_path / "other.jsonl", published), learns_scores=True, loss="kl")[0].scores == (3, 1)


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    folder = tmp_path / "collection"
    (folder / "qrels").mkdir(parents=True)
    write_lines(folder / "corpus.jsonl", [{"_id": name, "title": name, "text": "text"} for name in "abcd"])
    write_lines(folder / "queries.jsonl", [{"_id": name, "text": f"query {name}"} for name in "xyz"])
    (folder / "qrels" / "train.tsv").write_text("x\ta\t1\nx\tb\t2\nx\tc\t0\ny\td\t1\n")
    (folder / "qrels" / "dev.tsv").write_text("z\ta\t1\n")
    return folder


def test_a_collection_gives_an_example_of_each_document_that_answers(collection: Path) -> None:
    first, second, third = read(collection)
    assert first.texts == ("query x", "a text", "c text")
    assert second.texts == ("query x", "b text", "c text")
    assert third.texts[:2] == ("query y", "d text")
    (held_out,) = read(collection / "qrels" / "dev.tsv")
    assert held_out.texts == ("query z", "a text")


@pytest.mark.parametrize(
    ("record", "values", "words"),
    [
        ({"query": "q", "words": "p"}, {}, "no two columns known to hold a pair"),
        ({"query": "q", "positive": 3}, {}, "has a int in 'positive'"),
        ({"query": " ", "positive": "p"}, {}, "holds no query with a document"),
        ({"query": "q", "positive": "p"}, {"negative_column": "hard"}, "has no column 'hard'"),
        ({"query": "q", "positive": "p", "negative": "n"}, {"loss": "kl"}, "has no column 'scores'"),
        (
            {"query": "q", "positive": "p", "negative": "n", "scores": [1]},
            {"loss": "kl"},
            "has 1 scores for 1 documents that answer and 1 that do not",
        ),
        ({"query": "q", "positive": "p", "scores": [1]}, {"loss": "kl"}, "an example without negatives"),
        (
            {"query": "q", "positive": "p", "negative": "n", "scores": ["a", 1]},
            {"loss": "kl"},
            "expected a list of numbers",
        ),
        ({"query": "q", "positive": "p"}, {"validation": "{train}"}, "is to train on and to be held out"),
    ],
)
def test_bad_records_are_refused(tmp_path: Path, record: dict[str, Any], values: dict[str, Any], words: str) -> None:
    path = write_lines(tmp_path / "train.jsonl", [record])
    given = {name: str(path) if value == "{train}" else value for name, value in values.items()}
    with pytest.raises(InputError, match=words):
        read(path, learns_scores="loss" in given, **given)


def test_a_collection_has_no_scores(collection: Path) -> None:
    with pytest.raises(InputError, match="holds no scores of a teacher"):
        read(collection, learns_scores=True, loss="kl")
